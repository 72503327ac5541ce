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

// Incoming is a request of a trainer. The memory may be the trainer's own, and stays as it is until
// Reply is called, exactly once.
type Incoming struct {
	From           int // rank
	Header         []byte
	IDs            []int64 // of all tables, one after another
	Values, Answer []byte  // their gradients or rows, and room for rows; see request.Op.RowType
	Reply          func(header []byte, err error)
}

// tableRows is the rows of one table that a request names, checked.
type tableRows struct {
	*served
	ids    []int64
	values []byte   // gradients or rows, or room for rows
	dtype  op.DType // of values
	rate   float64
}

// update is a push, or another request that may have to wait.
type update struct {
	in      *Incoming
	from    int
	op      request.Op
	number  int64 // of the trainer's updates; 0 of a pull
	step    int64 // of a push: its number on the trainer
	seen    int64 // of a push: the version that the trainer's last pull had
	tables  []tableRows
	ids     unsafe.Pointer // memory of their ids
	then    []*update      // requests that wait for a push; the Server's mu guards it
	mistake error          // why it is not carried out
}

// Handle carries out a request, and replies to it now or, to a synchronous push, when the step is
// complete, and to a call of a KV when its function has returned. The requests of one trainer come
// one after another.
func (s *Server) Handle(in *Incoming) {
	if request.IsKV(in.Header) {
		if err := s.queueCall(in); err != nil {
			in.Reply(nil, err)
		}
		return
	}
	head, u, err := s.read(in)
	if err == nil {
		s.counted.bytesIn.Add(uint64(len(in.Header) + 8*len(in.IDs) + len(in.Values)))
		s.counted.bytesOut.Add(uint64(len(in.Answer)))
	}
	switch {
	case err != nil:
		s.refuse(u, err)
	case u.op.IsStep():
		s.counted.pushes.Add(1)
		s.push(u, head.Step)
	case s.waits(u, head), s.keepsAhead(u):
	case u.op.Updates():
		s.mu.Lock()
		s.carryOutLocked(u)
	default:
		u.done(s.access(u))
	}
}

// refuse answers a request with an error. An update is carried out as one that changes nothing,
// because a cut waits for it if another server has it: but a push that would wait for other
// trainers is not counted by itself.
func (s *Server) refuse(u *update, err error) {
	s.mu.Lock()
	alone := s.rule.Load().alone(s.Trainers)
	if s.trainers[u.from] == nil || !u.op.Updates() || u.op.IsStep() && !alone {
		s.mu.Unlock()
		u.done(request.Answer{}, err)
		return
	}
	u.mistake = err
	s.carryOutLocked(u)
}

// waits keeps a request until the push before it is applied, if there is one that its trainer has
// given up. Otherwise a trainer waits for its push itself, and only other threads of it ask
// meanwhile, for the rows before.
func (s *Server) waits(u *update, head request.Head) bool {
	if head.Step != request.AfterPush {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.trainers[u.from]
	before := t.waiting
	if before == nil {
		before = t.applying
	}
	switch {
	case before != nil:
		before.then = append(before.then, u)
	case !u.op.Writes() && s.hold != nil && s.hold.waitsLocked(u.from):
		s.hold.queue = append(s.hold.queue, u)
	default:
		return false
	}
	return true
}

// access carries out what is not a push.
func (s *Server) access(u *update) (answer request.Answer, err error) {
	switch u.op {
	case request.Write:
		if err := u.makeRows(); err != nil {
			return answer, err
		}
		for _, r := range u.tables {
			if err := r.table.Write(r.batch()); err != nil {
				return answer, r.says(err)
			}
		}
		answer.Version = s.Version.Load()
		return answer, nil
	case request.Reserve:
		return answer, u.makeRows()
	case request.ReadStates, request.WriteStates:
		return u.accessStates(s.Version.Load())
	}
	s.counted.pulls.Add(1)
	answer.Version = s.Version.Load() // before the rows are read: they are at least as new
	for _, r := range u.tables {
		if err := r.copyOut(u.op); err != nil {
			return answer, r.says(err)
		}
		r.pulled.Add(int64(len(r.ids)))
	}
	if rule := s.rule.Load(); rule.Lambda > 0 && u.op == request.Pull {
		s.Tables.keepBackups(u, rule)
	}
	return answer, nil
}

// copyOut carries out a pull or a lookup of one table.
func (r *tableRows) copyOut(what request.Op) error {
	if what == request.Pull {
		return r.table.Pull(r.batch())
	}
	return r.table.Look(r.batch(), what == request.LookZeros)
}

// makeRows makes the rows of all tables that may refuse them, but where ids come and go: such a
// table with a limit is on one server.
func (u *update) makeRows() error {
	for _, r := range u.tables {
		if r.table.MemoryLimit == 0 || r.table.ComeAndGo() {
			continue
		}
		if err := r.table.Make(r.batch().IDs); err != nil {
			return r.says(err)
		}
	}
	return nil
}

// batch returns the memory of r. Without ids there is none.
func (r *tableRows) batch() table.Batch {
	ids := &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(r.ids)), Count: int64(len(r.ids)), DType: op.Int64, NDim: 1}
	values := &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(r.values)), Count: int64(len(r.values) / r.dtype.Size()), DType: r.dtype, NDim: 1}
	return table.Batch{IDs: ids, Values: values}
}

// says adds the table's name to an error.
func (r *tableRows) says(err error) error {
	code := status.CodeOf(err)
	return status.New(code, "table %q on server %d: %v", r.meta.Name, r.server, err)
}

// read checks a request. The ids are copied, because the table trusts that they do not change. The
// copy is outside the Go heap, as all memory that a table is given; the caller frees it.
func (s *Server) read(in *Incoming) (head request.Head, u *update, err error) {
	head, err = request.Decode(in.Header)
	u = &update{in: in, from: in.From, op: head.Op, number: head.Number, seen: head.Seen}
	if err != nil {
		u.op = 0 // whatever it is
		return head, u, err
	}
	s.mu.Lock()
	t, err := s.trainerLocked(in.From)
	if err == nil {
		t.seen = time.Now()
	}
	s.mu.Unlock()
	if err != nil {
		return head, u, err
	}
	given, err := head.TakeList(in.IDs)
	if err != nil {
		return head, u, err
	}
	tables := s.Tables.served()
	values, what := in.Values, "gradients"
	if head.Op.Reads() {
		values, what = in.Answer, "room"
	}
	rows := make([]tableRows, len(head.Tables))
	var total, bytes int64
	aligned := true
	for i, r := range head.Tables {
		if uint64(r.Table) >= uint64(len(tables)) {
			return head, u, status.New(status.Argument, "a %v of rank %d names table %d; server %d has %d tables", head.Op, in.From, r.Table, s.Index, len(tables)).WithRanks(in.From)
		}
		t := tables[r.Table].table
		rows[i] = tableRows{served: tables[r.Table], rate: r.Rate, dtype: head.Op.RowType(t.RowType())}
		if r.Count > 0 {
			bytes = request.Align(bytes)
			aligned = aligned && (uintptr(unsafe.Pointer(unsafe.SliceData(values)))+uintptr(bytes))%uintptr(rows[i].dtype.Size()) == 0
		}
		total += int64(r.Count)
		bytes += int64(r.Count) * head.Op.RowBytes(head.Op.Width(t.Dim, t.StateLen()), t.RowType())
	}
	if total != int64(len(given)) || bytes != int64(len(values)) || !aligned {
		return head, u, status.New(status.Argument, "a %v of rank %d has %d ids and %d bytes of %s; its header has %d ids, whose rows take %d bytes, aligned to their elements",
			head.Op, in.From, len(given), len(values), what, total, bytes).WithRanks(in.From)
	}
	room, err := mem.Alloc(max(8, 8*total))
	if err != nil {
		return head, u, err
	}
	ids := unsafe.Slice((*int64)(room), total)
	copy(ids, given)
	var at int64
	for i := range rows {
		r, n := &rows[i], int64(head.Tables[i].Count)
		r.ids, ids = ids[:n:n], ids[n:]
		if n > 0 {
			begin := request.Align(at)
			at = begin + n*head.Op.RowBytes(head.Op.Width(r.table.Dim, r.table.StateLen()), r.table.RowType())
			r.values = values[begin:at:at]
		}
	}
	u.tables, u.ids = rows, room
	return head, u, nil
}

// push applies an update at once, or keeps it until the other trainers' are there. step is the
// number that its trainer gives it.
func (s *Server) push(u *update, step int64) {
	if !s.rule.Load().alone(s.Trainers) {
		// An update that the table would refuse fails for its own trainer only.
		for _, r := range u.tables {
			if err := r.table.Check(r.batch()); err != nil {
				s.refuse(u, r.says(err))
				return
			}
		}
	}
	s.mu.Lock()
	t, err := s.trainerLocked(u.from)
	switch {
	case err != nil:
	case u.op == request.Add && s.rule.Load().Sync:
		err = status.New(status.Argument, "rank %d adds to rows of server %d, which is in mode sync", u.from, s.Index).WithRanks(u.from)
	case t.waiting != nil && step == 0:
		err = status.New(status.Mismatch, "rank %d pushes again to server %d, where its step %d still waits for other trainers; the call that pushed it has ended with an error, but the step stays",
			u.from, s.Index, t.steps).WithRanks(u.from)
	case t.waiting != nil || step != 0 && step != t.steps+1:
		err = status.New(status.Mismatch, "rank %d pushes step %d to server %d, which has its step %d: push all tables of a step at once, from one thread at a time",
			u.from, step, s.Index, t.steps).WithRanks(u.from)
	case s.rule.Load().alone(s.Trainers):
		s.carryOutLocked(u)
		return
	}
	if err != nil {
		s.mu.Unlock()
		s.refuse(u, err)
		return
	}
	t.steps++
	t.waiting, u.step = u, t.steps
	ready := s.readyLocked()
	s.mu.Unlock()
	s.apply(ready)
}

// readyLocked returns the updates of the next step, in the order of the ranks, if every active
// trainer's is there. The caller applies it.
func (s *Server) readyLocked() (all []*update) {
	if !s.rule.Load().Sync || s.applying || !s.hold.letsStep(s.steps) {
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
	if len(all) > 0 {
		s.applying = true
		s.running++
	}
	return all
}

// apply applies the updates of a step and replies to all. Then it goes on with the next step, if
// that is ready.
func (s *Server) apply(all []*update) {
	for len(all) > 0 {
		err := together(all)
		var version int64
		if err == nil {
			version = s.Version.Add(1)
		} else { // the step was not applied; the trainers may push it again
			s.mu.Lock()
			for _, u := range all {
				s.trainers[u.from].steps--
			}
			s.mu.Unlock()
		}
		for _, u := range all {
			u.done(request.Answer{Version: version, Steps: u.step}, err)
		}
		all = s.next(all)
	}
}

// next ends a step that was applied: it carries out what was kept until then, and returns the next
// one if that is ready.
func (s *Server) next(all []*update) []*update {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range all { // what comes meanwhile is kept, too, so that it does not overtake
		for len(u.then) > 0 {
			later := u.then[0]
			u.then = u.then[1:]
			if later.op.Updates() {
				s.carryOutLocked(later)
			} else {
				s.mu.Unlock()
				later.done(s.access(later))
			}
			s.mu.Lock()
		}
		s.trainers[u.from].applying = nil
	}
	s.applying = false
	s.steps++
	s.endedLocked()
	return s.readyLocked()
}

// done answers a request.
func (u *update) done(answer request.Answer, err error) {
	mem.Free(u.ids)
	if err != nil {
		u.in.Reply(nil, err)
		return
	}
	u.in.Reply(answer.Encode(), nil)
}

// together applies updates as one: to all of their tables, or to none. Tables come in the order in
// which the updates name them; the gradients of a table are those of the first trainer, then those
// of the second one, and so on.
func together(all []*update) error {
	if err := refusalOf(all); err != nil {
		return err
	}
	byTable := map[*served][]tableRows{}
	var order []*served
	for _, u := range all {
		for _, r := range u.tables {
			if byTable[r.served] == nil {
				order = append(order, r.served)
			}
			byTable[r.served] = append(byTable[r.served], r)
		}
	}
	steps := make([]*tableStep, 0, len(order))
	defer func() {
		for _, one := range steps {
			one.end()
		}
	}()
	for _, t := range order {
		if err := sameRates(byTable[t], all); err != nil {
			return err
		}
		one, err := prepare(byTable[t])
		if err != nil {
			return byTable[t][0].says(err)
		}
		steps = append(steps, one)
	}
	for _, one := range steps {
		if err := one.apply(all[0].op); err != nil {
			return one.says(err)
		}
	}
	return nil
}

// refusalOf returns an error with the trainers that refuse the step, if there are any.
func refusalOf(all []*update) error {
	var ranks []int
	for _, u := range all {
		if u.op == request.Refuse {
			ranks = append(ranks, u.from)
		}
	}
	if ranks == nil {
		return nil
	}
	return status.New(status.Refused, "rank(s) %v refused the step, and their own error says why; it changed nothing", ranks).WithRanks(ranks...)
}

// tableStep is what a step does to one table.
type tableStep struct {
	tableRows
	update *table.Update  // nil if there are no ids here
	room   unsafe.Pointer // of what several trainers push
}

// prepare puts the ids and gradients of all trainers for a table behind each other, and makes room
// for their rows. Then apply cannot be refused.
func prepare(rows []tableRows) (*tableStep, error) {
	one := &tableStep{tableRows: rows[0]}
	if len(rows) > 1 {
		var ids, values int
		for _, r := range rows {
			ids, values = ids+len(r.ids), values+len(r.values)
		}
		room, err := mem.Alloc(int64(max(8, 8*ids+values)))
		if err != nil {
			return nil, err
		}
		one.room = room
		one.ids, one.values = unsafe.Slice((*int64)(room), ids)[:0], unsafe.Slice((*byte)(unsafe.Add(room, 8*ids)), values)[:0]
		for _, r := range rows {
			one.ids, one.values = append(one.ids, r.ids...), append(one.values, r.values...)
		}
	}
	if len(one.ids) == 0 {
		return one, nil
	}
	rate := one.rate
	if math.IsNaN(rate) {
		rate = math.Float64frombits(one.served.rate.Load())
	}
	var err error
	if one.update, err = one.table.Prepare(one.batch(), rate); err != nil {
		one.end()
		return nil, err
	}
	return one, nil
}

// apply updates the table. It counts the step also where other servers have all its ids, so that
// Adam's bias correction is the same on all. What is added is none of the optimizer's steps.
func (one *tableStep) apply(what request.Op) error {
	if what == request.Add {
		if one.update == nil {
			return nil
		}
		one.pushed.Add(int64(len(one.ids)))
		return one.update.Add()
	}
	if one.update == nil {
		one.table.CountStep()
		return nil
	}
	if err := one.update.Apply(0); err != nil {
		return err
	}
	one.pushed.Add(int64(len(one.ids)))
	return nil
}

func (one *tableStep) end() {
	if one.update != nil {
		one.update.End()
	}
	mem.Free(one.room)
}

// sameRates returns an error if trainers push the same table with different learning rates.
func sameRates(rows []tableRows, all []*update) error {
	for _, r := range rows[1:] {
		if first := rows[0].rate; r.rate != first && !(math.IsNaN(r.rate) && math.IsNaN(first)) {
			var ranks []int
			for _, u := range all {
				ranks = append(ranks, u.from)
			}
			return status.New(status.Mismatch, "table %q: the trainers push with learning rates %v and %v in the same step", r.meta.Name, first, r.rate).WithRanks(ranks...)
		}
	}
	return nil
}
