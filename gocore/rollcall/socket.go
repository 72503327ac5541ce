package rollcall

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// The sockets of a roll call: of this host, with packets, and with a name that is no file. Any process of the host may
// connect to such a name, so both ends look whose process the other one is.

// What ranks tell each other.
const (
	hello    = "hello"    // to the caller: this rank has come
	bye      = "bye"      // to the caller: its deadline has passed
	ask      = "ask"      // to the caller: has it reported the wait? It does so now at the latest
	reported = "reported" // of the caller, to an ask
	start    = "start"    // of the caller: all have come, or it is no use to wait. Call MPI_Init
	missing  = "absent"   // of the caller, to a bye: these have not come
	gone     = "gone"     // of the caller: it has given up, another one has to call
	failed   = "failed"   // of the caller: there is an error
)

// message is one packet.
type message struct {
	Kind     string
	Rank     int         // of the sender
	Local    int         // the same among the ranks of the node
	Why      string      // of a start: why not all are waited for; "": all have come
	Code     status.Code // of a failure
	Text     string      // of a failure, or what is known of those that are missing
	Who      string      // is missing, in words
	Ranks    []int
	Left     map[int]int // who had come and has given up, with the numbers on the node
	Reported bool        // the wait
}

// longest is the most bytes of a message.
const longest = 64 << 10

// sendLimit is how long a message may take to be sent; its receiver may be stopped.
const sendLimit = 100 * time.Millisecond

// link is a connection to another rank.
type link struct {
	conn *net.UnixConn
	pid  int // of the other rank's process; 0 if this process cannot see it
	read []byte
}

// errForeign is the error if the process at the other end is another user's.
var errForeign = errors.New("a process of another user has the socket")

// listen takes a name. taken says that another process has it.
func listen(name string) (l *net.UnixListener, taken bool, err error) {
	l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		return nil, errors.Is(err, syscall.EADDRINUSE), err
	}
	descriptors.Of(l, descriptors.Note)
	return l, false, nil
}

// dial connects to the process that has a name.
func dial(name string) (*link, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return wrap(conn)
}

// wrap makes a link of a connection to a process of this user, and closes others.
func wrap(conn *net.UnixConn) (*link, error) {
	var peer *syscall.Ucred
	err := errForeign
	descriptors.Of(conn, func(fd int) { peer, err = syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED) })
	if err == nil && int(peer.Uid) != os.Geteuid() {
		err = errForeign
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	descriptors.Of(conn, descriptors.Note)
	return &link{conn: conn, pid: int(peer.Pid), read: make([]byte, longest)}, nil
}

func (l *link) close() { closeAll(l.conn) }

// closeAll closes a connection or a listener.
func closeAll(s interface {
	syscall.Conn
	Close() error
}) {
	descriptors.Of(s, descriptors.Forget)
	_ = s.Close()
}

func (l *link) send(m message) {
	text, err := json.Marshal(m)
	if err != nil || len(text) > longest {
		return
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(sendLimit))
	_, _ = l.conn.Write(text) // who has ended reads no answer
}

// receive waits for a message until a time; the zero time: for good.
func (l *link) receive(until time.Time) (m message, err error) {
	_ = l.conn.SetReadDeadline(until)
	n, err := l.conn.Read(l.read)
	if errors.Is(err, syscall.ECONNRESET) {
		// The other end has closed before it read all. What it sent before comes now.
		n, err = l.conn.Read(l.read)
	}
	if err != nil {
		return m, err
	}
	err = json.Unmarshal(l.read[:n], &m)
	m.Why, m.Who, m.Text = printable(m.Why), printable(m.Who), printable(m.Text)
	return m, err
}

// printable replaces what could disturb a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
