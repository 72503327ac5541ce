// Pstable times pulls and pushes of a table of embeddings in one process, on one thread, for
// benchmarks/ps_table.py, which compares two builds of paddlempi.
//
//	pstable CONFIG BATCH ROWS ROUNDS
//
// CONFIG is the table's, in JSON: a field that this build does not know is ignored. All rows are made
// first, each by a push, or by three if CONFIG has admit_after, which is 2. Then rounds of one pull and
// one push of BATCH ids follow, of Zipf's distribution (exponent 1.05), each of other ids. It prints
// the medians, in ns of processor time: of a pull, and of a push.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	var c table.Config
	if len(arguments) != 4 {
		return fmt.Errorf("pstable CONFIG BATCH ROWS ROUNDS")
	}
	if err := json.Unmarshal([]byte(arguments[0]), &c); err != nil {
		return err
	}
	var numbers [3]int64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseInt(arguments[i+1], 10, 64); err != nil {
			return err
		}
	}
	n, rows, rounds := numbers[0], numbers[1], numbers[2]
	runtime.LockOSThread()
	t, err := table.New(c)
	if err != nil {
		return err
	}

	b, err := batch(n, c.Dim)
	if err != nil {
		return err
	}
	ids := unsafe.Slice((*int64)(b.IDs.Data), n)
	made := 1
	if strings.Contains(arguments[0], `"admit_after"`) {
		made = 3 // 2, and the sketch may forget one of them
	}
	for from := int64(0); from < rows; from += n {
		for i := range ids {
			ids[i] = min(from+int64(i), rows-1)
		}
		for range made {
			if err := t.Push(b, math.NaN(), 1); err != nil {
				return err
			}
		}
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.05, 1, uint64(rows-1))
	places := rand.New(rand.NewPCG(3, 4)).Perm(int(rows))
	var pulls, pushes []int64
	for range rounds {
		for i := range ids {
			ids[i] = int64(places[zipf.Uint64()])
		}
		start := used()
		if err := t.Pull(b); err != nil {
			return err
		}
		middle := used()
		if err := t.Push(b, math.NaN(), 0); err != nil {
			return err
		}
		pulls, pushes = append(pulls, middle-start), append(pushes, used()-middle)
	}
	fmt.Println(median(pulls), median(pushes))
	return nil
}

func batch(n, dim int64) (table.Batch, error) {
	room, err := mem.Alloc(8*n + 4*n*dim)
	if err != nil {
		return table.Batch{}, err
	}
	clear(unsafe.Slice((*byte)(room), 8*n+4*n*dim))
	buf := func(p unsafe.Pointer, n int64, d op.DType) *op.Buf {
		return &op.Buf{Data: p, Count: n, DType: d, DeviceType: op.DeviceCPU}
	}
	return table.Batch{IDs: buf(room, n, op.Int64), Values: buf(unsafe.Add(room, 8*n), n*dim, op.Float32)}, nil
}

// used returns the processor time of this thread in ns.
func used() int64 {
	const thread = 3 // CLOCK_THREAD_CPUTIME_ID
	var at syscall.Timespec
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&at)), 0) // it cannot fail
	return at.Nano()
}

func median(of []int64) int64 {
	slices.Sort(of)
	return of[len(of)/2]
}
