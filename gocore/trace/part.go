package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// A part is what one host has recorded: a JSON object. The operations of a rank are columns of numbers: base64 of zlib of little-endian
// numbers, of which some columns have differences (python/paddlempi/trace/parts.py reads it).

const (
	partFormat  = "paddlempi-timeline"
	partVersion = 1

	leastPriority = 19 // nice(2)
)

// part is the file, but for its ranks, which follow.
type part struct {
	Format   string    `json:"format"`
	Version  int       `json:"version"`
	Host     string    `json:"host"`
	Boot     string    `json:"boot"`
	Began    int64     `json:"began"` // nanoseconds since 1970, as all times
	Taken    int64     `json:"taken"`
	Clock    partClock `json:"clock"`
	CPU      float64   `json:"cpu"` // seconds that the recording took, without the file
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"` // what was left out, in sentences
}

// partClock says how the ticks of the ranks became times: unix + (ticks - ticks_at_unix) * ns_per_tick.
type partClock struct {
	Kind      string  `json:"kind"`
	NsPerTick float64 `json:"ns_per_tick"`
	Ticks     uint64  `json:"ticks"`
	Unix      int64   `json:"unix"`
}

// partRank is a rank in the file.
type partRank struct {
	Rank       int               `json:"rank"`
	Size       int               `json:"size"`
	PID        int               `json:"pid"`
	Job        string            `json:"job"`
	Generation int               `json:"generation"`
	State      string            `json:"state"`
	Began      int64             `json:"began"`
	Taken      int64             `json:"taken"`
	Ended      int64             `json:"ended"` // when its process was seen to have ended; 0: it has not
	Lost       uint64            `json:"lost"`
	Thinned    uint64            `json:"thinned"`
	Damaged    uint64            `json:"damaged"`
	Problem    string            `json:"problem"`
	Groups     []GroupRecord     `json:"groups"`
	Kinds      []partKind        `json:"kinds"`
	Count      int               `json:"count"` // operations
	Columns    map[string]column `json:"columns"`
}

// partKind is a kind in the file.
type partKind struct {
	Group     int64   `json:"group"`
	Operation string  `json:"operation"`
	DType     *string `json:"dtype"`
	Bytes     int     `json:"bytes"` // of an element
	ReduceOp  *string `json:"reduce_op"`
	Root      *int    `json:"root"`
	Counted   bool    `json:"counted"` // whether count is a number of elements
	Flags     uint32  `json:"flags"`
	Algorithm *string `json:"algorithm"`
	Outcome   *string `json:"outcome"` // none: under way
}

// column is a column in the file.
type column struct {
	Width  int    `json:"width"`  // bytes of a number
	Signed bool   `json:"signed"` // zigzag: 0, -1, 1, -2 ...
	Steps  bool   `json:"steps"`  // the differences from the number before
	Data   string `json:"data"`
}

// stillUnderWay is the outcome of a kind whose operations have not ended.
const stillUnderWay = 1 << 63

// record returns what operations of the kind have in common.
func (k *kind) record() (o OperationRecord, ok bool) {
	e := entry{word: ended, group: k.group, flags: k.flags, algorithm: k.algorithm, outcome: k.outcome, submitted: 1, ended: 1}
	e.signature[0] = k.signature
	return e.record(&timeline{perTick: 1, last: moment{ticks: 1}})
}

func (k *kind) valid() bool {
	_, ok := k.record()
	return ok
}

func (k *kind) part() partKind {
	o, _ := k.record()
	p := partKind{Group: o.Group, Operation: o.Operation, DType: o.DType, ReduceOp: o.ReduceOp, Root: o.Root, Counted: true,
		Flags: uint32(k.flags & (Async | Message | Refusing)), Algorithm: o.Algorithm, Outcome: o.Outcome}
	if k.flags&Access == 0 {
		p.Counted = !op.Code(k.signature & 0xff).Trait().Neighbours
	}
	if o.DType != nil {
		p.Bytes = op.DType(k.signature >> 8 & 0xff).Size()
	}
	if k.outcome == stillUnderWay {
		p.Outcome = nil
	}
	return p
}

// Written says what Write has written.
type Written struct {
	Counts
	Bytes    int64     `json:"bytes"`
	CPU      float64   `json:"cpu"`
	WriteCPU float64   `json:"write_cpu"` // seconds that the file took
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"`
}

// Write ends the recording, and writes it to a file, which it replaces in one step. Its thread has a low priority from then on.
func (c *Collector) Write(path string) (*Written, error) {
	if _, err := c.Poll(); err != nil {
		return nil, err
	}
	used := cpuTime()
	c.look()
	c.Wait(0)
	for _, r := range c.rings {
		if c.thinner.shift == 0 {
			r.poll()
		}
	}
	end := takeMoment()
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, leastPriority) // of this thread: the ranks may need the CPUs
	line, err := newTimeline(clockKind(), c.begin, end)
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".paddlempi-timeline-*")
	if err != nil {
		return nil, status.New(status.Argument, "cannot write %s: %v", path, err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	w := &counting{to: bufio.NewWriterSize(file, 1<<20)}
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	p := part{Format: partFormat, Version: partVersion, Host: host, Boot: text(boot), Began: line.unix(c.begin.ticks), Taken: end.unix,
		Clock:    partClock{"CLOCK_MONOTONIC", line.perTick, end.ticks, end.unix},
		Problems: c.Problems(), Notes: []string{}}
	if useCounter {
		p.Clock.Kind = "TSC"
	}
	for _, r := range c.rings {
		if w.written == 0 {
			w.text(`{"ranks":[`)
		} else {
			w.text(",\n")
		}
		if err := c.writeRank(w, r, &line); err != nil {
			return nil, err
		}
	}
	if w.written == 0 {
		w.text(`{"ranks":[`)
	}
	if note := c.thinner.note(c.Counts().Thinned); note != "" {
		p.Notes = append(p.Notes, note)
	}
	if set := time.Duration((end.unix - c.begin.unix) - int64(end.monotonic-c.begin.monotonic)); set.Abs() > time.Millisecond {
		p.Notes = append(p.Notes, fmt.Sprintf("the clock of this host was set by %v during the recording: times are those of its end", set))
	}
	p.CPU = (used - c.cpu).Seconds()
	b, _ := json.Marshal(p)
	w.text("],\n")
	w.text(string(b[1:]))
	w.text("\n")
	if w.failed == nil {
		w.failed = w.to.Flush()
	}
	if w.failed == nil {
		w.failed = file.Chmod(0o644)
	}
	if w.failed == nil {
		w.failed = os.Rename(file.Name(), path)
	}
	if w.failed != nil {
		return nil, status.New(status.Argument, "cannot write %s: %v", path, w.failed)
	}
	return &Written{Counts: c.Counts(), Bytes: w.written, CPU: p.CPU, WriteCPU: (cpuTime() - used).Seconds(), Problems: p.Problems, Notes: p.Notes}, nil
}

// writeRank writes a rank, also what it has under way.
func (c *Collector) writeRank(w *counting, r *recorded, line *timeline) error {
	lost, underWay := r.lostSoFar(), r.packUnderWay()
	if err := r.flush(c.spool, 0); err != nil {
		return err
	}
	packed, err := c.spool.read(r.extents)
	if err != nil {
		return err
	}
	table := newTable(int(r.kept + underWay))
	err = unpack(packed, len(r.packer.kinds), func(kind int, values *row) {
		if values.isBetween(r.head.ticks, line) {
			table.add(kind, values)
		} else {
			r.packer.damaged++
		}
	})
	if err != nil {
		return status.New(status.Panic, "%v", err)
	}
	table.sort()
	rank := partRank{Rank: int(r.head.rank), Size: int(r.head.size), PID: r.view.pid, Job: r.job(), Generation: int(uint32(r.header().generation)),
		State: r.state(), Began: line.unix(max(r.head.ticks, c.begin.ticks)), Taken: line.last.unix, Ended: r.ended, Lost: lost,
		Thinned: r.thinned, Damaged: r.packer.damaged, Groups: []GroupRecord{}, Kinds: []partKind{}, Count: len(table.rows), Columns: table.columns(line)}
	for _, g := range r.groups {
		rank.Groups = append(rank.Groups, GroupRecord{g.ID, hex(g.Key), g.Rank, g.Ranks})
	}
	slices.SortFunc(rank.Groups, func(a, b GroupRecord) int { return int(a.ID - b.ID) })
	for i := range r.packer.kinds {
		rank.Kinds = append(rank.Kinds, r.packer.kinds[i].part())
	}
	b, err := json.Marshal(rank)
	if err != nil {
		return status.New(status.Panic, "%v", err)
	}
	w.text(string(b))
	return nil
}

// isBetween tells whether the times of an operation are not before the ring was made, nor later than the recording.
func (r *row) isBetween(made uint64, line *timeline) bool {
	margin := uint64(slack / line.perTick)
	longest := line.last.ticks + margin - r[colSubmitted]
	return r[colSubmitted]+margin >= made && r[colSubmitted] <= line.last.ticks+margin &&
		max(r[colBegun], r[colArrived], r[colWaited], r[colEnded]) <= longest+1
}

// packUnderWay packs what has not ended, and returns how many that were.
func (r *recorded) packUnderWay() (n uint64) {
	for _, number := range r.open {
		if e, ok := r.copyUnderWay(number); ok {
			e.outcome, e.ended = stillUnderWay, 0
			r.packer.add(&e)
			n++
		}
	}
	return n
}

// unix returns the time of ticks, which may lie outside of the recording.
func (l *timeline) unix(ticks uint64) int64 {
	return l.last.unix - int64(float64(int64(l.last.ticks-ticks))*l.perTick)
}

// table is the operations of a rank.
type table struct {
	rows  []row
	kinds []int32
}

func newTable(n int) *table { return &table{make([]row, 0, n), make([]int32, 0, n)} }

func (t *table) add(kind int, values *row) {
	t.rows, t.kinds = append(t.rows, *values), append(t.kinds, int32(kind))
}

// sort brings the operations into the order of their numbers.
func (t *table) sort() {
	if slices.IsSortedFunc(t.rows, func(a, b row) int { return cmp.Compare(a[colNumber], b[colNumber]) }) {
		return
	}
	order := make([]int32, len(t.rows))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(t.rows[a][colNumber], t.rows[b][colNumber]) })
	rows, kinds := make([]row, len(order)), make([]int32, len(order))
	for i, from := range order {
		rows[i], kinds[i] = t.rows[from], t.kinds[from]
	}
	t.rows, t.kinds = rows, kinds
}

// columns returns the columns of the file, in which times are nanoseconds: submitted since 1970, the others 1 plus those since submitted.
func (t *table) columns(line *timeline) map[string]column {
	list := map[string]column{}
	values := make([]uint64, len(t.rows))
	for i := range values {
		values[i] = uint64(t.kinds[i])
	}
	list["kind"] = newColumn(values, false)
	for c, name := range columnNames {
		for i := range t.rows {
			v := t.rows[i][c]
			switch {
			case c == colSubmitted:
				v = uint64(line.unix(v))
			case c > colSubmitted && v > 0:
				v = 1 + uint64(float64(v-1)*line.perTick)
			}
			values[i] = v
		}
		list[name] = newColumn(values, c == colNumber || c == colSeq || c == colSubmitted)
	}
	return list
}

// newColumn makes a column. It uses values.
func newColumn(values []uint64, steps bool) column {
	signed, most := false, uint64(0)
	if steps {
		for i := len(values) - 1; i > 0; i-- {
			values[i] -= values[i-1]
		}
	}
	for _, v := range values {
		signed = signed || int64(v) < 0
	}
	for i, v := range values {
		if signed {
			values[i] = v<<1 ^ uint64(int64(v)>>63)
		}
		most = max(most, values[i])
	}
	width := 1
	for bits.Len64(most) > 8*width {
		width *= 2
	}
	raw := make([]byte, 0, width*len(values))
	for _, v := range values {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		raw = append(raw, b[:width]...)
	}
	var packed bytes.Buffer
	z, _ := zlib.NewWriterLevel(&packed, zlib.BestSpeed)
	_, _ = z.Write(raw) // into memory
	_ = z.Close()
	return column{width, signed, steps, base64.StdEncoding.EncodeToString(packed.Bytes())}
}

// counting writes text, until that fails.
type counting struct {
	to      *bufio.Writer
	written int64
	failed  error
}

func (w *counting) text(s string) {
	if w.failed == nil {
		_, w.failed = io.WriteString(w.to, s)
		w.written += int64(len(s))
	}
}

// cpuTime returns the time that the threads of this process have used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
