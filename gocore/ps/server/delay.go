package server

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
)

// This file compensates gradients for their delay (DC-ASGD-c): S. Zheng et al., "Asynchronous
// Stochastic Gradient Descent with Delay Compensation", ICML 2017. A trainer computes its gradient g
// from rows that others update before it pushes. A server keeps a backup of each row as a trainer
// has pulled it last, and updates the row w with
//
//	g + lambda g g (w - backup)
//
// where g g, element by element, stands for the diagonal of the Hessian. Without a backup the
// gradient is taken as it is, as in asynchronous training. DC-ASGD-a has for each element the mean
// of the squares of its gradients so far, whoever pushed them, and divides lambda by its root:
//
//	mean = decay mean + (1 - decay) g g;  lambda / sqrt(mean + 1e-7)
//
// Backups are bounded. Of each sparse table a trainer has Rule.Backups rows at most: the table of
// its backups that is half full becomes the older one of two, in the place of the one before. And
// they count in the table's limit, and so do the means: if they and the rows do not fit in it, all
// backups and means of the table are dropped. No cut has them.

// backup is rows of one table as one trainer has pulled them last.
type backup struct {
	young, old *table.Table // old may be nil. A row of young is the newer one.
}

func (b *backup) free() {
	b.young.Free()
	if b.old != nil {
		b.old.Free()
	}
}

// keep keeps rows that a trainer has pulled, of which there are at most so many in all.
func (b *backup) keep(r *tableRows, most int64) error {
	info, err := b.young.Info()
	if err != nil {
		return err
	}
	ids := r.batch()
	if half := max(1, most/2); info.Rows+ids.IDs.Count > half {
		if b.old != nil {
			b.old.Free()
		}
		b.old = b.young
		if b.young, err = newBackup(r.served); err != nil {
			b.young, b.old = b.old, nil
			return err
		}
		if ids.IDs.Count > half { // older backups of the others would be wrong
			b.old.Free()
			b.old = nil
			ids.IDs.Count, ids.Values.Count = half, half*r.table.Dim
		}
	}
	return b.young.Write(ids)
}

// find copies backups, of float32, of those ids that have one, and says which.
func (b *backup) find(into table.Batch, there, room []byte) error {
	if b.old == nil {
		return b.young.Find(into, there)
	}
	if err := b.old.Find(into, there); err != nil {
		return err
	}
	if err := b.young.Find(into, room); err != nil {
		return err
	}
	for i, is := range room {
		there[i] |= is
	}
	return nil
}

func newBackup(of *served) (*table.Table, error) { return ofZeros(of.table, of.table.DType) }

// newMeans makes a table of means, which go with their rows where these come and go.
func newMeans(of *served) (*table.Table, error) {
	c := configOfZeros(of.table, op.Float32.String())
	c.ExpireAfter, c.MaxRows = of.table.ExpireAfter, of.table.MaxRows
	return table.New(c)
}

func ofZeros(of *table.Table, dtype string) (*table.Table, error) {
	return table.New(configOfZeros(of, dtype))
}

func configOfZeros(of *table.Table, dtype string) table.Config {
	return table.Config{Dim: of.Dim, DType: dtype, IDs: of.Config.IDs, Initializer: table.Initializer{Name: "zeros"}, Optimizer: table.Optimizer{Name: "sgd"}}
}

// keepBackups keeps what a pull has read. Without memory for it there is no backup.
func (ts *Tables) keepBackups(u *update, rule *Rule) {
	ts.delay.Lock()
	defer ts.delay.Unlock()
	for i := range u.tables {
		r := &u.tables[i]
		if len(r.ids) == 0 {
			continue
		}
		if r.backups == nil {
			r.backups = map[int]*backup{}
		}
		b := r.backups[u.from]
		if b == nil {
			young, err := newBackup(r.served)
			if err != nil {
				continue
			}
			b = &backup{young: young}
			r.backups[u.from] = b
		}
		most := rule.Backups
		if r.meta.Dims != nil {
			most = 1 << 62 // a dense parameter has no more rows than these
		}
		if err := b.keep(r, most); err != nil { // some may be older than the pull
			b.free()
			delete(r.backups, u.from)
		}
		r.fit()
	}
}

// fit drops all backups of a table if they do not fit in its limit beside its rows. The caller holds
// Tables.delay.
func (t *served) fit() {
	if t.table.MemoryLimit == 0 || len(t.backups) == 0 && t.means == nil {
		return
	}
	info, err := t.table.Info()
	if _, bytes := t.backed(); err != nil || info.Bytes+bytes > t.table.MemoryLimit {
		t.dropBackups()
	}
}

// backed returns how many backups there are, and how many bytes they and the means take. The caller
// holds Tables.delay.
func (t *served) backed() (rows, bytes int64) {
	for _, b := range t.backups {
		for _, one := range []*table.Table{b.young, b.old} {
			if one == nil {
				continue
			}
			if info, err := one.Info(); err == nil {
				rows, bytes = rows+info.Rows, bytes+info.Bytes
			}
		}
	}
	if t.means != nil {
		if info, err := t.means.Info(); err == nil {
			bytes += info.Bytes
		}
	}
	return rows, bytes
}

// dropBackups drops all backups and means of a table. The caller holds Tables.delay.
func (t *served) dropBackups() {
	for _, b := range t.backups {
		b.free()
	}
	t.backups = nil
	if t.means != nil {
		t.means.Free()
		t.means = nil
	}
}

// updateAlone applies an update that waits for no other trainer.
func (ts *Tables) updateAlone(u *update, rule *Rule) error {
	if rule.Lambda == 0 || u.op != request.Push {
		return together([]*update{u})
	}
	ts.delay.Lock()
	defer ts.delay.Unlock()
	made := make([]compensated, len(u.tables))
	for i := range u.tables {
		r := &u.tables[i]
		err := r.compensate(u.from, rule, &made[i])
		defer mem.Free(made[i].room)
		if err != nil {
			return r.says(err)
		}
	}
	err := together([]*update{u})
	for i, r := range u.tables {
		if m := &made[i]; err == nil && m.means.IDs != nil {
			if r.writeMeans(m.means, m.there) != nil { // the push has been applied
				r.dropBackups()
			}
		}
		r.fit()
	}
	return err
}

// compensated is what the gradients of a table have become.
type compensated struct {
	room  unsafe.Pointer // has the gradients and the means; the caller frees it
	means table.Batch    // what the means are if the update is not refused; without IDs: as they were
	there []byte         // room for a byte for each of its ids
}

// compensate makes the gradients of a trainer what they are now. The caller holds Tables.delay.
func (r *tableRows) compensate(from int, rule *Rule, made *compensated) error {
	b, n := r.backups[from], int64(len(r.ids))
	if n == 0 || b == nil && rule.Decay == 0 {
		return nil
	}
	row := n * r.table.Dim
	room, err := mem.Alloc(4*4*row + 2*n)
	if err != nil {
		return err
	}
	made.room = room
	floats := unsafe.Slice((*float32)(room), 4*row)
	flags := unsafe.Slice((*byte)(unsafe.Add(room, 4*4*row)), 2*n)
	clear(flags)
	ids := r.batch().IDs
	of := func(values []float32) table.Batch {
		return table.Batch{IDs: ids, Values: &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(values)), Count: row, DType: op.Float32, NDim: 1}}
	}
	gradients, now, before, means := floats[:row], floats[row:2*row], floats[2*row:3*row], floats[3*row:]
	if b != nil {
		if err := b.find(of(before), flags[:n], flags[n:]); err != nil {
			return err
		}
	}
	if err := r.table.Pull(of(now)); err != nil {
		return err
	}
	bytes := unsafe.Slice((*byte)(room), 4*row)
	copy(bytes, r.values)
	r.values = bytes
	if rule.Decay == 0 {
		table.Compensate(gradients, now, before, nil, flags[:n], float32(rule.Lambda), 0, r.table.Dim)
		return nil
	}
	if r.means == nil {
		if r.means, err = newMeans(r.served); err != nil {
			return err
		}
	}
	if err := r.pullMeans(of(means)); err != nil {
		return err
	}
	table.Compensate(gradients, now, before, means, flags[:n], float32(rule.Lambda), float32(rule.Decay), r.table.Dim)
	made.means, made.there = of(means), flags[:n]
	return nil
}

// ForgetBackups drops the backups of all trainers: their rows were restored.
func (ts *Tables) ForgetBackups() {
	tables := ts.served()
	ts.delay.Lock()
	defer ts.delay.Unlock()
	for _, t := range tables {
		t.dropBackups()
	}
}

// forgetBackupsOf drops the backups of a trainer that asks nothing more.
func (ts *Tables) forgetBackupsOf(rank int) {
	tables := ts.served()
	ts.delay.Lock()
	defer ts.delay.Unlock()
	for _, t := range tables {
		if b := t.backups[rank]; b != nil {
			b.free()
			delete(t.backups, rank)
		}
	}
}
