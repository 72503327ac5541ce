package segment

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Rendezvous is where a Giver listens, and its secret. It travels by MPI. The kernel shows the name
// to all processes of the node; a process that knows only the name gets nothing. The zero Rendezvous is that of no Giver.
type Rendezvous struct {
	Name   uint64
	Secret [2]uint64
}

// Words returns a rendezvous as numbers. RendezvousOf reads them.
func (r Rendezvous) Words() [3]int64 {
	return [3]int64{int64(r.Name), int64(r.Secret[0]), int64(r.Secret[1])}
}

// RendezvousOf returns the rendezvous in w.
func RendezvousOf(w [3]int64) Rendezvous {
	return Rendezvous{uint64(w[0]), [2]uint64{uint64(w[1]), uint64(w[2])}}
}

// secret returns the bytes that a taker sends.
func (r Rendezvous) secret() []byte {
	b := binary.LittleEndian.AppendUint64(nil, r.Secret[0])
	return binary.LittleEndian.AppendUint64(b, r.Secret[1])
}

// address returns an abstract socket (unix(7)): it has no file, and ends with its owner. It
// connects processes that share a network namespace.
func (r Rendezvous) address() *syscall.SockaddrUnix {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], r.Name)
	return &syscall.SockaddrUnix{Name: "@paddlempi-" + hex.EncodeToString(b[:])}
}

// Giver sends the descriptor of a file to processes that ask for it.
type Giver struct {
	// SameUser says that only processes of this user get it: the secret may be known to others. It is set before Give.
	SameUser bool

	socket     int
	file       int // a descriptor of its own, of the file that it gives
	rendezvous Rendezvous
}

// NewGiver starts to listen for processes that want a file, which may be closed meanwhile. Close stops it.
func NewGiver(f *File) (*Giver, error) {
	var random [24]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, status.New(status.Unsupported, "no random numbers for a socket's secret: %v", err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(random[8*i:]) }
	g := &Giver{rendezvous: Rendezvous{word(0), [2]uint64{word(1), word(2)}}}
	file, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(f.fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, status.New(status.Unsupported, "cannot keep shared memory that is to be given: %v", errno)
	}
	g.file = int(file)
	var err error
	if g.socket, err = newSocket(); err != nil {
		syscall.Close(g.file)
		return nil, err
	}
	if err = syscall.Bind(g.socket, g.rendezvous.address()); err == nil {
		err = syscall.Listen(g.socket, 64)
	}
	if err != nil {
		g.Close()
		return nil, status.New(status.Unsupported, "cannot listen on an abstract socket: %v", err)
	}
	return g, nil
}

// Rendezvous returns where the giver listens.
func (g *Giver) Rendezvous() Rendezvous { return g.rendezvous }

// Close stops listening.
func (g *Giver) Close() {
	syscall.Close(g.socket)
	syscall.Close(g.file)
}

// Give serves processes until n of them have got the file. It returns an error if the deadline passes
// before. A process that does not send the secret gets nothing.
func (g *Giver) Give(n int, deadline time.Time) error {
	for n > 0 {
		if err := limit(g.socket, deadline); err != nil {
			return err
		}
		if !time.Now().Before(deadline) { // strangers may come all the time
			return tooFew(n)
		}
		taker, _, err := syscall.Accept4(g.socket, syscall.SOCK_CLOEXEC)
		switch err {
		case nil:
		case syscall.EINTR, syscall.ECONNABORTED:
			continue
		case syscall.EAGAIN:
			return tooFew(n)
		default:
			return status.New(status.Unsupported, "accept of a process that wants the shared memory: %v", err)
		}
		if g.serve(taker) {
			n--
		}
		syscall.Close(taker)
	}
	return nil
}

func tooFew(n int) error {
	return status.New(status.Timeout, "%d processes of this node did not come for the shared memory", n)
}

// strangerLimit is how long a process that connects may take to send the secret, because others
// wait meanwhile.
const strangerLimit = time.Second

func (g *Giver) serve(taker int) bool {
	end := time.Now().Add(strangerLimit)
	want := g.rendezvous.secret()
	got := make([]byte, len(want)) // reads no more than a secret
	for have := 0; have < len(got); {
		if !time.Now().Before(end) || limit(taker, end) != nil { // each byte may take its time
			return false
		}
		n, err := syscall.Read(taker, got[have:])
		if n <= 0 && err != syscall.EINTR {
			return false
		}
		have += max(n, 0)
	}
	if subtle.ConstantTimeCompare(got, want) != 1 || g.SameUser && !sameUser(taker) {
		return false
	}
	return syscall.Sendmsg(taker, []byte{1}, syscall.UnixRights(g.file), nil, 0) == nil
}

// sameUser tells whether the process at the other end of a socket runs as the user of this one (SO_PEERCRED, unix(7)).
func sameUser(socket int) bool {
	other, err := syscall.GetsockoptUcred(socket, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	return err == nil && int(other.Uid) == syscall.Geteuid()
}

// Take gets a file from its Giver. It checks that the file is the one that a identifies, and has
// size bytes (AnySize: any number).
func Take(r Rendezvous, a Address, size int64, deadline time.Time) (*File, error) {
	socket, err := newSocket()
	if err != nil {
		return nil, err
	}
	defer syscall.Close(socket)
	if err := limit(socket, deadline); err != nil {
		return nil, err
	}
	refused := func(what string, err error) error {
		return status.New(status.Unsupported, "cannot get shared memory from process %d over a socket: %s: %v", a.PID, what, err)
	}
	if err := syscall.Connect(socket, r.address()); err != nil {
		return nil, refused("connect", err)
	}
	if _, err := syscall.Write(socket, r.secret()); err != nil {
		return nil, refused("write", err)
	}
	fds, err := receive(socket)
	if err != nil {
		return nil, refused("receive", err)
	}
	f, err := adopt(fds)
	if err != nil {
		return nil, err
	}
	return f.check(a, size, "what a socket gave")
}

// receive receives one descriptor, and closes any others.
func receive(socket int) (int, error) {
	one := make([]byte, 1)
	room := make([]byte, syscall.CmsgSpace(4))
	n, control, _, _, err := syscall.Recvmsg(socket, one, room, syscall.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, syscall.ECONNRESET
	}
	messages, err := syscall.ParseSocketControlMessage(room[:control])
	if err != nil {
		return -1, err
	}
	for _, m := range messages {
		if fds, err := syscall.ParseUnixRights(&m); err == nil && len(fds) > 0 {
			for _, more := range fds[1:] {
				syscall.Close(more)
			}
			return fds[0], nil
		}
	}
	return -1, syscall.EPROTO
}

func newSocket() (int, error) {
	s, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, status.New(status.Unsupported, "cannot make a socket: %v", err)
	}
	return s, nil
}

// limit lets calls on a socket wait until the deadline only. They return EAGAIN then.
func limit(socket int, deadline time.Time) error {
	left := max(time.Until(deadline), time.Millisecond)
	tv := syscall.NsecToTimeval(left.Nanoseconds())
	for _, option := range []int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err := syscall.SetsockoptTimeval(socket, syscall.SOL_SOCKET, option, &tv); err != nil {
			return status.New(status.Unsupported, "cannot give a socket a deadline: %v", err)
		}
	}
	return nil
}
