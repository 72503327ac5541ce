package world

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/stretchr/testify/assert"
)

// envs runs f on every rank of a fake world that has no groups, and waits for all of them.
func envs(t *testing.T, n int, nodes []int, f func(t *testing.T, e *Env)) {
	t.Helper()
	var options []mpifake.Option
	if nodes != nil {
		options = append(options, mpifake.Nodes(nodes))
	}
	var all sync.WaitGroup
	for _, lib := range mpifake.New(n, options...) {
		all.Add(1)
		go func() {
			defer all.Done()
			if e, err := NewEnv(mpifake.World(lib), 20*time.Second, nil); assert.NoError(t, err) {
				f(t, e)
			}
		}()
	}
	all.Wait()
}

// A setting that is wrong is the error of every rank, before anything is made.
func TestASettingOfReportsIsChecked(t *testing.T) {
	t.Setenv(health.ReportVariable, "0.01")
	_, err := NewEnv(mpifake.World(mpifake.New(1)[0]), time.Second, nil)
	assert.Equal(t, status.Argument, status.CodeOf(err))
}

// end destroys a world.
func end(t *testing.T, e *Env) {
	settled, err := e.Destroy()
	assert.NoError(t, err)
	if settled {
		assert.NoError(t, e.Close())
	}
}

func TestAHelloThatWasTakenBackIsNotTakenForTheNextAttempt(t *testing.T) {
	const key = 77
	var gaveUp, done sync.WaitGroup
	gaveUp.Add(1)
	done.Add(2)
	envs(t, 2, nil, func(t *testing.T, e *Env) {
		both := []int{0, 1}
		if e.Topo.Rank == 1 {
			began := time.Now()
			missing, err := e.meet("test", key, both, 50*time.Millisecond)
			assert.ErrorIs(t, err, work.ErrDeadline)
			assert.Equal(t, []int{0}, missing)
			assert.Less(t, time.Since(began), decisionGrace) // rank 0 never asked: there is no decision
			// To rank 0 it is as if the letter that takes the hello back had not come.
			e.Mail.Send(0, mailbox.Hello, key, binary.LittleEndian.AppendUint64(nil, 1))
			gaveUp.Done()
		} else {
			gaveUp.Wait()
			missing, err := e.meet("test", key, both, 50*time.Millisecond)
			assert.ErrorIs(t, err, work.ErrDeadline)
			assert.Equal(t, []int{1}, missing)
		}
		done.Done()
		done.Wait()
		missing, err := e.meet("test", key, both, 10*time.Second)
		assert.NoError(t, err)
		assert.Empty(t, missing)
	})
}

// FuzzMail has a rank in the middle of a meeting and of questions, to whom another one sends what the input
// says as mail: each letter is its kind, the key's choice, its length, and its body.
func FuzzMail(f *testing.F) {
	letter := func(kind, key byte, body ...byte) []byte { return append([]byte{kind, key, byte(len(body))}, body...) }
	number := make([]byte, 8)
	number[0] = 1
	f.Add([]byte{})
	for kind := range byte(12) {
		f.Add(slices.Concat(letter(kind, 0, number...), letter(kind, 1, number...), letter(kind, 2)))
		f.Add(letter(kind, 1, slices.Concat(number, number)...))
		f.Add(letter(kind, 3, slices.Concat(number, number, number)...))
	}
	f.Add(letter(byte(mailbox.Fail), 1, slices.Concat(number, []byte{255, 255, 255, 255, 0, 0, 0, 128})...))
	f.Setenv("PADDLEMPI_DEAD_AFTER", "0") // connections would take most of the time
	f.Add(letter(byte(mailbox.Ready), 1, slices.Concat(number, number)...))
	f.Fuzz(func(t *testing.T, input []byte) {
		libs := mpifake.New(2, mpifake.Nodes([]int{0, 1}), mpifake.Patience(5*time.Second))
		var all sync.WaitGroup
		first := byte(0)
		if len(input) > 0 {
			first = input[0] >> 7 // which rank is damaged, and so, which one leads the meeting
		}
		began := time.Now()
		for _, lib := range libs {
			all.Add(1)
			go func() {
				defer all.Done()
				e, err := NewEnv(mpifake.World(lib), 10*time.Second, nil)
				if !assert.NoError(t, err) {
					return
				}
				defer end(t, e)
				both := []int{0, 1}
				pair := e.Groups.Key(both)
				e.Groups.Unmake(both)
				if e.Topo.Rank != int(first) {
					err := e.Meet("new_group", "come", pair, both, 30*time.Millisecond)
					var named *status.Error
					if assert.True(t, errors.As(err, &named), "the ranks have met without rank %d", first) {
						for _, r := range named.Ranks {
							assert.True(t, r == 0 || r == 1)
						}
					}
					return
				}
				keys := []uint64{0, pair, 5, mailbox.OfProcess}
				for rest := input; len(rest) >= 3; {
					n := min(int(rest[2]), len(rest)-3)
					kind := mailbox.Kind(rest[0] & 0x7f)
					if kind != mailbox.Go { // it says that all members have come: then this rank is believed
						e.Mail.Send(1-e.Topo.Rank, kind, keys[int(rest[1])%len(keys)], rest[3:3+n])
					}
					rest = rest[3+n:]
				}
			}()
		}
		all.Wait()
		assert.Less(t, time.Since(began), time.Minute)
	})
}
