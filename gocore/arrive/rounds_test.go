package arrive

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
)

// Each member gets the notes of all, of any length, in as many rounds as the number of members needs.
func TestNotesReachEveryMember(t *testing.T) {
	for n := 1; n <= 17; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			assert.NoError(t, mpifake.Each(mpifake.New(n), func(rank int, lib mpi.Library) error {
				w, err := NewWire(mpifake.World(lib), 2)
				if err != nil {
					return err
				}
				block, err := mem.Alloc(WireNotes)
				if err != nil {
					return err
				}
				defer mem.Free(block)
				for seq := uint64(1); seq <= 20; seq++ {
					length := func(member int) int64 { return (int64(seq) * int64(member+1) * 211) % (w.Room() + 1) }
					mine := unsafe.Slice((*byte)(block), WireNotes)[:length(rank)]
					for i := range mine {
						mine[i] = byte(rank + i + int(seq))
					}
					state, _, err := w.Announce(seq, &Signature{7}, 0, Note{block, length(rank)}, 0)
					clear(mine) // the note was copied
					for state == Pending && err == nil {
						time.Sleep(time.Microsecond)
						state, _, err = w.Poll(0)
					}
					if !assert.NoError(t, err) || !assert.Equal(t, Agreed, state) {
						return err
					}
					for member := range n {
						note, bytes := w.Note(seq, member)
						if !assert.Equal(t, length(member), bytes) {
							return nil
						}
						for i, b := range unsafe.Slice((*byte)(note), bytes) {
							if b != byte(member+i+int(seq)) {
								return fmt.Errorf("n %d, member %d: byte %d of the note of %d is %d", n, rank, i, member, b)
							}
						}
					}
				}
				assert.Eventually(t, w.Settled, 20*time.Second, time.Millisecond)
				return w.Close()
			}))
		})
	}
}

// What a damaged member sends is an error, whatever it is, and never more than was received is read.
func TestAGatheringBelievesNoLength(t *testing.T) {
	header := func(seq, kind, records uint64) []byte {
		b := make([]byte, headerBytes)
		for i, v := range []uint64{seq, kind, records} {
			binary.LittleEndian.PutUint64(b[8*i:], v)
		}
		return b
	}
	record := func(member, bytes uint32, data int) []byte {
		b := binary.LittleEndian.AppendUint32(nil, member)
		return append(binary.LittleEndian.AppendUint32(b, bytes), make([]byte, data)...)
	}
	for name, message := range map[string][]byte{
		"nothing":                {},
		"half a header":          header(1, 1, 0)[:40],
		"another collective":     append(header(2, 1, 8), record(1, 0, 0)...),
		"another kind":           append(header(1, 2, 8), record(1, 0, 0)...),
		"fewer records":          append(header(1, 1, 16), record(1, 0, 0)...),
		"no records":             header(1, 1, 0),
		"half a record":          append(header(1, 1, 4), 1, 0, 0, 0),
		"a member out of range":  append(header(1, 1, 8), record(2, 0, 0)...),
		"a member of no int32":   append(header(1, 1, 8), record(1<<31, 0, 0)...),
		"the receiver's note":    append(header(1, 1, 8), record(0, 0, 0)...),
		"a length beyond it":     append(header(1, 1, 16), record(1, 9, 8)...),
		"a length beyond a note": append(header(1, 1, 8), record(1, WireNote+1, 0)...),
		"a length of 2^32 - 1":   append(header(1, 1, 8), record(1, 1<<32-1, 0)...),
		"a note twice":           append(header(1, 1, 16), append(record(1, 0, 0), record(1, 0, 0)...)...),
	} {
		t.Run(name, func(t *testing.T) {
			libs := mpifake.New(2)
			w, err := NewWire(mpifake.World(libs[0]), 2)
			require.NoError(t, err)
			block, err := mem.Alloc(1 << 10)
			require.NoError(t, err)
			defer mem.Free(block)
			copy(unsafe.Slice((*byte)(block), 1<<10), message)
			_, err = mpifake.World(libs[1]).Send(block, int64(len(message)), 0, 2)
			require.NoError(t, err)
			state, _, err := w.Announce(1, &Signature{1}, 0, Note{}, 0)
			for state == Pending && err == nil {
				state, _, err = w.Poll(0)
			}
			var damaged *Damaged
			if assert.ErrorAs(t, err, &damaged) && name != "no records" {
				assert.Equal(t, 1, damaged.Member)
			}
		})
	}
}
