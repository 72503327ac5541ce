package world

import (
	"errors"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// readForced reads PADDLEMPI_ALGO, which a group obeys that is made now. what is the caller's
// function, for the error.
func readForced(what string) (coll.Forced, error) {
	list, _ := dl.Getenv("PADDLEMPI_ALGO")
	f, err := coll.ParseForced(list)
	var e *status.Error
	if errors.As(err, &e) {
		return 0, status.New(e.Code, "%s: PADDLEMPI_ALGO=%s: %s", what, list, e.Msg)
	}
	return f, err
}

// AgreeOnForced reads PADDLEMPI_ALGO and compares it with that of the other ranks of comm, all of
// which call it. Ranks that preferred different algorithms would deadlock, so they get an error.
func AgreeOnForced(what string, comm transport.Exchange) (coll.Forced, error) {
	forced, mistake := readForced(what)
	const wrong = -1 // is below every Forced
	word := int64(forced)
	if mistake != nil {
		word = wrong
	}
	words := []int64{word, ^word}
	if err := comm.Min(words); err != nil {
		return 0, err
	}
	least, most := words[0], ^words[1]
	switch list, _ := dl.Getenv("PADDLEMPI_ALGO"); {
	case mistake != nil:
		return 0, mistake
	case least == wrong:
		return 0, status.New(status.Refused, "%s: PADDLEMPI_ALGO is wrong on another rank, and its own error says how", what)
	case least != most:
		return 0, status.New(status.Mismatch, "%s: PADDLEMPI_ALGO differs between the ranks; it is %q on this rank: set it alike on all of them", what, list)
	}
	return forced, nil
}
