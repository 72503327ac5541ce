package server

import (
	"math"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Incoming is a request of a trainer. The memory may be the trainer's own, and stays as it is until Reply is
// called, exactly once.
type Incoming struct {
	From           int // rank
	Header         []byte
	IDs            []int64 // of all parts, one after another
	Values, Answer []byte  // their gradients or rows, and room for rows: of a KV's dtype, or of what request.Op.RowType says
	Reply          func(header []byte, err error)
}

// part is a request's part for one table, checked.
type part struct {
	*served
	ids    []int64
	values []byte   // gradients or rows, or room for rows
	dtype  op.DType // of values
	rate   float64
}

// update is a push.
type update struct {
	in      *Incoming
	from    int
	step    int64 // its number on the trainer
	refused bool  // the trainer refuses the step
	parts   []part
	ids     unsafe.Pointer // memory of the parts' ids
	then    []func(error)  // requests that wait for a push; the Server's mu guards it
}

// Handle carries out a request, and replies to it now or, to a synchronous push, when the step is complete, and to a
// call of a KV when its function has returned. The requests of one trainer come one after another.
func (s *Server) Handle(in *Incoming) {
	if request.IsCall(in.Header) {
		if err := s.call(in); err != nil {
			in.Reply(nil, err)
		}
		return
	}
	answer, later, err := s.handle(in)
	switch {
	case err != nil:
		in.Reply(nil, err)
	case !later:
		in.Reply(answer.Encode(), nil)
	}
}

func (s *Server) handle(in *Incoming) (answer request.Answer, later bool, err error) {
	head, u, err := s.read(in)
	if err != nil {
		return answer, false, err
	}
	defer func() {
		if !later {
			mem.Free(u.ids)
		}
	}()
	s.counted.bytesIn.Add(uint64(len(in.Header) + 8*len(in.IDs) + len(in.Values)))
	s.counted.bytesOut.Add(uint64(len(in.Answer)))
	if head.Op.IsStep() {
		s.counted.pushes.Add(1)
		return s.push(u, head)
	}
	if s.waits(u, head) {
		return answer, true, nil
	}
	answer, err = s.access(u, head.Op)
	return answer, false, err
}

// waits keeps a request until the push before it is applied, if there is one that its trainer has given up.
// Otherwise a trainer waits for its push itself, and only other threads of it ask meanwhile, for the rows before.
func (s *Server) waits(u *update, head request.Head) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.trainers[u.from]
	before := t.waiting
	if before == nil {
		before = t.applying
	}
	if before == nil || head.Step != request.AfterPush {
		return false
	}
	before.then = append(before.then, func(err error) {
		var answer request.Answer
		if err == nil {
			answer, err = s.access(u, head.Op)
		}
		if err != nil {
			u.reply(nil, err)
			return
		}
		u.reply(answer.Encode(), nil)
	})
	return true
}

// access carries out what is not a push.
func (s *Server) access(u *update, what request.Op) (answer request.Answer, err error) {
	if what == request.Write {
		for _, p := range u.parts {
			if err := p.Write(p.batch()); err != nil {
				return answer, p.says(s, err)
			}
		}
		answer.Version = s.version.Load()
		return answer, nil
	}
	s.counted.pulls.Add(1)
	answer.Version = s.version.Load() // before the rows are read: they are at least as new
	for _, p := range u.parts {
		if err := p.Pull(p.batch()); err != nil {
			return answer, p.says(s, err)
		}
		p.pulled.Add(int64(len(p.ids)))
	}
	return answer, nil
}

// batch returns the memory of a part. An empty part has no memory.
func (p *part) batch() table.Batch {
	ids := &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(p.ids)), Count: int64(len(p.ids)), DType: op.Int64, NDim: 1}
	values := &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(p.values)), Count: int64(len(p.values) / p.dtype.Size()), DType: p.dtype, NDim: 1}
	return table.Batch{IDs: ids, Values: values}
}

// says adds the table's name to an error.
func (p *part) says(s *Server, err error) error {
	code := status.CodeOf(err)
	return status.New(code, "table %q on server %d: %v", p.meta.Name, s.Index, err)
}

// read checks a request. The ids are copied, because the table trusts that they do not change. The copy is outside
// the Go heap, as all memory that a table is given; the caller frees it.
func (s *Server) read(in *Incoming) (head request.Head, u *update, err error) {
	if head, err = request.Decode(in.Header); err != nil {
		return head, nil, err
	}
	s.mu.Lock()
	t, err := s.trainerLocked(in.From)
	if err == nil {
		t.seen = time.Now()
	}
	tables := s.tables
	s.mu.Unlock()
	if err != nil {
		return head, nil, err
	}
	values, what := in.Values, "gradients"
	if head.Op == request.Pull {
		values, what = in.Answer, "room"
	}
	parts := make([]part, len(head.Parts))
	var total, bytes int64
	aligned := true
	for i, p := range head.Parts {
		if uint64(p.Table) >= uint64(len(tables)) {
			return head, nil, status.New(status.Argument, "a %v of rank %d names table %d; server %d has %d tables", head.Op, in.From, p.Table, s.Index, len(tables)).WithRanks(in.From)
		}
		t := tables[p.Table]
		parts[i] = part{served: t, rate: p.Rate, dtype: head.Op.RowType(t.RowType())}
		if p.Count > 0 {
			bytes = request.Align(bytes)
			aligned = aligned && (uintptr(unsafe.Pointer(unsafe.SliceData(values)))+uintptr(bytes))%uintptr(parts[i].dtype.Size()) == 0
		}
		total += int64(p.Count)
		bytes += int64(p.Count) * t.Dim * int64(parts[i].dtype.Size())
	}
	if total != int64(len(in.IDs)) || bytes != int64(len(values)) || !aligned {
		return head, nil, status.New(status.Argument, "a %v of rank %d has %d ids and %d bytes of %s; its header has %d ids, whose rows take %d bytes, aligned to their elements",
			head.Op, in.From, len(in.IDs), len(values), what, total, bytes).WithRanks(in.From)
	}
	room, err := mem.Alloc(max(8, 8*total))
	if err != nil {
		return head, nil, err
	}
	ids := unsafe.Slice((*int64)(room), total)
	copy(ids, in.IDs)
	var at int64
	for i := range parts {
		p, n := &parts[i], int64(head.Parts[i].Count)
		p.ids, ids = ids[:n:n], ids[n:]
		if n > 0 {
			begin := request.Align(at)
			at = begin + n*p.Dim*int64(p.dtype.Size())
			p.values = values[begin:at:at]
		}
	}
	return head, &update{in: in, from: in.From, refused: head.Op == request.Refuse, parts: parts, ids: room}, nil
}

// push applies an update at once, or keeps it until the other trainers' are there.
func (s *Server) push(u *update, head request.Head) (answer request.Answer, later bool, err error) {
	alone := !s.Sync || len(s.Trainers) == 1
	if !alone { // an update that the table would refuse fails for its own trainer only
		for _, p := range u.parts {
			if err := p.Check(p.batch()); err != nil {
				return answer, false, p.says(s, err)
			}
		}
	}
	s.mu.Lock()
	t, err := s.trainerLocked(u.from)
	switch {
	case err != nil:
	case t.waiting != nil && head.Step == 0:
		err = status.New(status.Mismatch, "rank %d pushes again to server %d, where its step %d still waits for other trainers; the call that pushed it has ended with an error, but the step stays",
			u.from, s.Index, t.steps).WithRanks(u.from)
	case t.waiting != nil || head.Step != 0 && head.Step != t.steps+1:
		err = status.New(status.Mismatch, "rank %d pushes step %d to server %d, which has its step %d: push all tables of a step at once, from one thread at a time",
			u.from, head.Step, s.Index, t.steps).WithRanks(u.from)
	}
	if err != nil {
		s.mu.Unlock()
		return answer, false, err
	}
	if alone {
		s.mu.Unlock()
		if err := s.update([]*update{u}); err != nil {
			return answer, false, err
		}
		s.mu.Lock()
		t.steps++
		steps := t.steps
		s.mu.Unlock()
		version := s.version.Add(1)
		answer = request.Answer{Version: version, Staleness: t.staleness.note(version-1, head.Seen), Steps: steps}
		return answer, false, nil
	}
	t.steps++
	t.waiting, u.step = u, t.steps
	ready := s.readyLocked()
	s.mu.Unlock()
	s.apply(ready)
	return answer, true, nil
}

// readyLocked returns the updates of a step, in the order of the ranks, if every active trainer's is there.
func (s *Server) readyLocked() (all []*update) {
	if !s.Sync {
		return nil
	}
	for _, rank := range s.Trainers {
		t := s.trainers[rank]
		if t.state == active && t.waiting == nil {
			return nil
		}
		if t.waiting != nil {
			all = append(all, t.waiting)
		}
	}
	for _, u := range all {
		t := s.trainers[u.from]
		t.waiting, t.applying = nil, u
	}
	return all
}

// apply applies the updates of a step and replies to all.
func (s *Server) apply(all []*update) {
	if len(all) == 0 {
		return
	}
	err := s.update(all)
	var version int64
	if err == nil {
		version = s.version.Add(1)
	}
	s.mu.Lock()
	var then []func(error)
	for _, u := range all {
		t := s.trainers[u.from]
		t.applying = nil
		if err != nil { // the step was not applied; the trainers may push it again
			t.steps--
		}
		then = append(then, u.then...)
	}
	s.mu.Unlock()
	for _, u := range all {
		if err != nil {
			u.reply(nil, err)
		} else {
			u.reply(request.Answer{Version: version, Steps: u.step}.Encode(), nil)
		}
	}
	for _, f := range then {
		f(nil)
	}
}

// reply answers an update that has waited.
func (u *update) reply(header []byte, err error) {
	mem.Free(u.ids)
	u.in.Reply(header, err)
}

// update applies updates as one. Tables come in the order of their numbers; the gradients of a table are those
// of the first trainer, then those of the second one, and so on.
func (s *Server) update(all []*update) error {
	if err := refusalOf(all); err != nil {
		return err
	}
	if len(all) == 1 {
		for i := range all[0].parts {
			if err := s.updateTable(all[0].parts[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	byTable := map[*served][]part{}
	var order []*served
	for _, u := range all {
		for _, p := range u.parts {
			if byTable[p.served] == nil {
				order = append(order, p.served)
			}
			byTable[p.served] = append(byTable[p.served], p)
		}
	}
	for _, t := range order {
		if err := sameRates(byTable[t], all); err != nil {
			return err
		}
	}
	for _, t := range order {
		if err := s.updateTable(byTable[t]); err != nil {
			return err
		}
	}
	return nil
}

// refusalOf returns an error with the trainers that refuse the step, if there are any.
func refusalOf(all []*update) error {
	var ranks []int
	for _, u := range all {
		if u.refused {
			ranks = append(ranks, u.from)
		}
	}
	if ranks == nil {
		return nil
	}
	return status.New(status.Refused, "rank(s) %v refused the step, and their own error says why; it changed nothing", ranks).WithRanks(ranks...)
}

// updateTable updates a table by parts that are put behind each other.
func (s *Server) updateTable(parts []part) error {
	all := parts[0]
	if len(parts) > 1 {
		var ids, values int
		for _, p := range parts {
			ids, values = ids+len(p.ids), values+len(p.values)
		}
		room, err := mem.Alloc(int64(max(8, 8*ids+values)))
		if err != nil {
			return err
		}
		defer mem.Free(room)
		all.ids, all.values = unsafe.Slice((*int64)(room), ids)[:0], unsafe.Slice((*byte)(unsafe.Add(room, 8*ids)), values)[:0]
		for _, p := range parts {
			all.ids, all.values = append(all.ids, p.ids...), append(all.values, p.values...)
		}
	}
	if err := all.push(); err != nil {
		return all.says(s, err)
	}
	return nil
}

// sameRates returns an error if trainers push the same table with different learning rates.
func sameRates(parts []part, all []*update) error {
	for _, p := range parts[1:] {
		if first := parts[0].rate; p.rate != first && !(math.IsNaN(p.rate) && math.IsNaN(first)) {
			var ranks []int
			for _, u := range all {
				ranks = append(ranks, u.from)
			}
			return status.New(status.Mismatch, "table %q: the trainers push with learning rates %v and %v in the same step", p.meta.Name, first, p.rate).WithRanks(ranks...)
		}
	}
	return nil
}

// push updates the table by the part. The table counts the step also where other servers have all its ids, so
// that Adam's bias correction is the same on all.
func (p *part) push() error {
	if len(p.ids) == 0 {
		p.CountStep()
		return nil
	}
	rate := p.rate
	if math.IsNaN(rate) {
		rate = math.Float64frombits(p.served.rate.Load())
	}
	if err := p.Push(p.batch(), rate, 0); err != nil {
		return err
	}
	p.pushed.Add(int64(len(p.ids)))
	return nil
}
