package join

// Here and in listen.go, connect.go and peer.go the first ranks of two jobs find each other by TCP: one listens at an
// address, the other connects. Both show that they know a secret before either reads anything else, and then tell each
// other who they are.
//
// What they show is an answer to the other's random challenge, so that the secret itself never travels. After that a
// connection carries frames, each with a code that only a holder of the secret can make. Nothing is encrypted.
//
// Lengths and texts that come from the network are checked before they are used.

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	// version is that of what travels over the connection.
	version = 1
	// mostSecret is the length of the longest secret, in bytes.
	mostSecret = 4096
	// mostFrame is the length of the longest frame, in bytes.
	mostFrame = 4096
	// mostText is the length of the longest text of the other job that is shown to a user.
	mostText = 512
	// strangerLimit is how long a process that connects may take to show that it knows the secret.
	strangerLimit = 5 * time.Second
)

// magic begins what each party sends first.
const magic = "pmpimeet"

// card is what a job tells the other one of itself.
type card struct {
	Library string `json:"library"` // paddlempi's version
	MPI     string `json:"mpi"`     // the version of its MPI: two jobs can be joined by one MPI only
	Size    int    `json:"size"`    // how many of its processes meet the other job
	Host    string `json:"host"`
	PID     int    `json:"pid"` // of its first rank
}

// String describes the job in errors.
func (c card) String() string { return fmt.Sprintf("process %d on host %s", c.PID, c.Host) }

// readCard reads the card of the other job. Its texts are made printable.
func readCard(text []byte) (c card, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return card{}, fmt.Errorf("what it tells of itself cannot be read: %w", err)
	}
	if c.Size < 1 || c.Size > 1<<24 || c.PID < 0 {
		return card{}, fmt.Errorf("it has %d ranks, and is process %d", c.Size, c.PID)
	}
	c.Library, c.MPI, c.Host = printable(c.Library), printable(c.MPI), printable(c.Host)
	return c, nil
}

// fits returns why two jobs cannot be joined, "" if they can.
func (c card) fits(other card) string {
	switch {
	case c.MPI != other.MPI:
		return fmt.Sprintf("the jobs have different MPIs: one has %q, the other %q; start both with the same one", c.MPI, other.MPI)
	case c.Library != other.Library:
		return fmt.Sprintf("the jobs have different versions of paddlempi: %q and %q", c.Library, other.Library)
	}
	return ""
}

// printable returns text of another process as it may be shown.
func printable(text string) string {
	if len(text) > mostText {
		text = text[:mostText]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// Other says where another job is, or waits.
type Other struct {
	Address    string `json:"address"` // host:port
	Secret     []byte `json:"secret"`  // what both jobs know, base64; nil: SecretFile has it
	SecretFile string `json:"secret_file"`
	Version    string `json:"version"` // paddlempi's, which both jobs must have
}

// secret returns what both jobs know.
func (o Other) secret(what string) (secret []byte, err error) {
	if secret = o.Secret; secret == nil {
		if secret, err = readSecret(o.SecretFile); err != nil {
			return nil, status.New(status.Argument, "%s: the file of the secret %s cannot be used: %v; make it with mode 0600", what, o.SecretFile, err)
		}
	}
	if len(secret) == 0 || len(secret) > mostSecret {
		return nil, status.New(status.Argument, "%s: the secret has %d bytes, not from 1 to %d", what, len(secret), mostSecret)
	}
	return secret, nil
}

// readSecret reads a secret from a file, which must be this user's alone. White space at its end does not count.
func readSecret(path string) ([]byte, error) {
	// A pipe or a device is not waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch owner := info.Sys().(*syscall.Stat_t).Uid; {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("it is no file (%v)", info.Mode())
	case int(owner) != os.Geteuid():
		return nil, fmt.Errorf("it belongs to user %d, and this is user %d", owner, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("others have rights to it (%v)", info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, mostSecret+1))
	return bytes.TrimRight(text, " \t\r\n"), err
}

const (
	nonceBytes = 32
	proofBytes = sha256.Size
	// Each party opens with magic, version and its challenge. The listener does so first; the caller adds its proof.
	openingBytes = len(magic) + 4 + nonceBytes
)

// The verdict of the listener, one byte. Its proof follows a welcome.
const (
	welcome     byte = 1
	wrongSecret byte = 2
	busy        byte = 4 // another job was let in
)

type nonce [nonceBytes]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // it never fails
	return n
}

// opening is what each party sends first.
func opening(n nonce) []byte {
	return append(binary.BigEndian.AppendUint32([]byte(magic), version), n[:]...)
}

// refusal is an error that the other job has told, or that this one tells it: waiting does not help.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

// errNoJob is the refusal of a caller that has found something else.
var errNoJob = refusal{"what listens there is no job of this library"}

// readOpening reads the other party's.
func readOpening(from io.Reader) (n nonce, err error) {
	var b [openingBytes]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return n, fmt.Errorf("no greeting: %w", err)
	}
	if string(b[:len(magic)]) != magic {
		return n, errNoJob
	}
	if theirs := binary.BigEndian.Uint32(b[len(magic):]); theirs != version { // what follows may have another form
		return n, refusal{fmt.Sprintf("the job there has another version of paddlempi (%d, and this one %d)", theirs, version)}
	}
	return nonce(b[len(magic)+4:]), nil
}

// proof is what a holder of the secret can make of both challenges. role keeps one party from sending back what it got.
func proof(secret []byte, role string, listener, caller nonce) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("paddlempi meet " + role + "\x00"))
	h.Write(listener[:])
	h.Write(caller[:])
	return h.Sum(nil)
}
