package admin

import (
	"context"
	"errors"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/paddlempi/paddlempi/gocore/ps/admin/pspb"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Errors of the core travel as a detail of gRPC's status, in the trailer of an answer. A trailer
// has a limit, so texts and lists of ranks are cut.
const (
	maxText  = 4 << 10
	maxRanks = 1024
)

// toGRPC makes a call end with an error of the Backend.
func toGRPC(err error) error {
	var e *status.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
	case errors.Is(err, context.DeadlineExceeded):
		return grpcstatus.Error(codes.DeadlineExceeded, "the deadline of the call has passed")
	case errors.Is(err, context.Canceled):
		return grpcstatus.Error(codes.Canceled, "the call was given up")
	default:
		e = status.New(status.Panic, "%v", err)
	}
	text := e.Msg
	if len(text) > maxText {
		text = text[:maxText] + " ..."
	}
	text = strings.ToValidUTF8(text, "?")
	f := &pspb.Failure{Code: int32(e.Code), MpiClass: int32(e.MPIClass), Text: text}
	for _, r := range e.Ranks[:min(len(e.Ranks), maxRanks)] {
		f.Ranks = append(f.Ranks, int32(r))
	}
	s, detailed := grpcstatus.New(grpcCode(e.Code), text).WithDetails(f)
	if detailed != nil {
		return grpcstatus.Error(grpcCode(e.Code), text)
	}
	return s.Err()
}

// grpcCode is what clients of other languages see.
func grpcCode(c status.Code) codes.Code {
	switch c {
	case status.Argument, status.Type:
		return codes.InvalidArgument
	case status.Timeout:
		return codes.DeadlineExceeded
	case status.Panic:
		return codes.Internal
	case status.NoMemory:
		return codes.ResourceExhausted
	}
	return codes.FailedPrecondition
}

// fromGRPC is the error of the core for a call that a server ended with err. What a server says is
// checked: a code of another version counts as Unsupported.
func fromGRPC(method, address string, err error) error {
	if err == nil {
		return nil
	}
	s := grpcstatus.Convert(err)
	for _, detail := range s.Details() {
		f, ok := detail.(*pspb.Failure)
		if !ok {
			continue
		}
		e := &status.Error{Code: status.Code(f.Code), MPIClass: int(f.MpiClass), Msg: shown(f.Text)}
		if e.Code <= status.OK || e.Code > status.PeerDied {
			e.Code = status.Unsupported
		}
		for _, r := range f.Ranks[:min(len(f.Ranks), maxRanks)] {
			if r >= 0 && r <= maxRank {
				e.Ranks = append(e.Ranks, int(r))
			}
		}
		return e
	}
	failed := func(c status.Code, why string) error {
		return status.New(c, "%s: the parameter server at %s %s", method, address, why)
	}
	switch s.Code() {
	case codes.DeadlineExceeded:
		return failed(status.Timeout, "has not answered before the deadline of the call")
	case codes.Canceled:
		return failed(status.Interrupted, "was not waited for: the call was given up")
	case codes.Unauthenticated:
		return failed(status.Refused, "refuses the token: it belongs to another job")
	case codes.Unimplemented:
		return failed(status.Unsupported, "does not know this call: it runs another version of paddlempi")
	case codes.ResourceExhausted:
		return failed(status.Argument, "or this process refuses the size of the message: "+shown(s.Message()))
	}
	return failed(status.PeerLeft, "does not answer: "+shown(s.Message()))
}

// shown makes the text of another process fit for a terminal.
func shown(text string) string {
	if len(text) > maxText+4 {
		text = text[:maxText] + " ..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}
