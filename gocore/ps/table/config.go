package table

// #include "table.h"
import "C"

import (
	"math"
	"slices"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Config says what a table is. It is the request of the control method table_new.
type Config struct {
	Dim         int64  `json:"dim"`
	DType       string `json:"dtype"`        // of the rows: float32, float16, bfloat16
	Seed        uint64 `json:"seed"`         // of the first values
	IDs         int64  `json:"num_ids"`      // ids are 0 to num_ids-1; 0: any id
	MemoryLimit int64  `json:"memory_limit"` // bytes; 0: none
	Refuse      bool   `json:"refuse"`       // refuse gradients that are not finite
	// Which ids have a row, and how long. If all is off, every id gets one at its first touch and keeps
	// it. Else only pushes and writes make rows, and are their uses; the clock is Steps. lifetime.c and
	// sketch.c say how.
	//
	// AdmitAfter says which push of an id makes its row; 0 and 1: the first. Earlier ones are counted,
	// and what they would do to the row is dropped.
	AdmitAfter int64 `json:"admit_after,omitempty"`
	// ExpireAfter removes a row when more than so many steps have passed since its last use; 0: never.
	ExpireAfter int64 `json:"expire_after,omitempty"`
	// MaxRows is how many rows there are at most; 0: any number. New ones take the place of those that
	// were not used for the longest time, and of the smallest ids among these.
	MaxRows int64 `json:"max_rows,omitempty"`

	Initializer Initializer `json:"initializer"`
	Optimizer   Optimizer   `json:"optimizer"`
}

// Initializer says what a new row holds: zeros; uniform numbers from A to B; or normal ones of mean
// A and standard deviation B.
type Initializer struct {
	Name string  `json:"name"`
	A    float64 `json:"a"`
	B    float64 `json:"b"`
}

// Optimizer says how a gradient changes a row. Fields that an optimizer has no use for are 0.
type Optimizer struct {
	Name               string   `json:"name"`
	LearningRate       float64  `json:"learning_rate"`
	WeightDecay        float64  `json:"weight_decay"`
	ClipValue          *float64 `json:"clip_value"` // nil: no limit
	ClipNorm           *float64 `json:"clip_norm"`  // nil: no limit
	Momentum           float64  `json:"momentum"`
	Nesterov           bool     `json:"nesterov"`
	Beta1              float64  `json:"beta1"`
	Beta2              float64  `json:"beta2"`
	Epsilon            float64  `json:"epsilon"`
	InitialAccumulator float64  `json:"initial_accumulator"`
	// BiasCorrection of Adam is by the steps of the table, or by those of each row, which is a float
	// more of its state. "": by the table's.
	BiasCorrection string `json:"bias_correction,omitempty"`
}

var initializers = map[string]C.int32_t{"zeros": C.PT_ZEROS, "uniform": C.PT_UNIFORM, "normal": C.PT_NORMAL}

// optimizers has what C calls each optimizer, and whether weight decay shrinks the row instead of
// adding to the gradient.
var optimizers = map[string]struct {
	code      C.int32_t
	decoupled bool
}{
	"sgd":              {C.PT_SGD, false},
	"momentum":         {C.PT_MOMENTUM, false},
	"adagrad":          {C.PT_ADAGRAD, false},
	"row_wise_adagrad": {C.PT_ROW_WISE_ADAGRAD, false},
	"adam":             {C.PT_ADAM, false},
	"adamw":            {C.PT_ADAM, true},
}

// Values of Optimizer.BiasCorrection.
const (
	ByTable = "table"
	ByRow   = "row"
)

// code returns what C calls the optimizer.
func (o *Optimizer) code() C.int32_t {
	code := optimizers[o.Name].code
	if code == C.PT_ADAM && o.BiasCorrection == ByRow {
		return C.PT_ADAM_BY_ROW
	}
	return code
}

// Correction returns of whose steps the bias correction is; "" of an optimizer that has none.
func (o *Optimizer) Correction() string {
	switch o.code() {
	case C.PT_ADAM:
		return ByTable
	case C.PT_ADAM_BY_ROW:
		return ByRow
	}
	return ""
}

func names[V any](of map[string]V) string {
	var all []string
	for name := range of {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Check returns an error about the argument that is wrong; nil if New takes them.
func (c *Config) Check() error {
	_, err := c.check()
	return err
}

// check returns the dtype of the rows, or an error about the argument that is wrong.
func (c *Config) check() (op.DType, error) {
	wrong := func(format string, args ...any) (op.DType, error) {
		return 0, status.New(status.Argument, "table: "+format, args...)
	}
	if c.Dim < 1 || c.Dim > MostDim {
		return wrong("dim=%d is not from 1 to %d", c.Dim, MostDim)
	}
	var dtype op.DType
	for d := range dtypes {
		if d.String() == c.DType {
			dtype = d
		}
	}
	if dtype == 0 {
		return 0, status.New(status.Type, "table: dtype=%q is none of float32, float16, bfloat16", c.DType)
	}
	if c.IDs < 0 {
		return wrong("num_ids=%d is below 0", c.IDs)
	}
	if c.MemoryLimit < 0 {
		return wrong("memory_limit=%d is below 0", c.MemoryLimit)
	}
	if err := c.checkLifetime(); err != nil {
		return 0, err
	}
	i, o := &c.Initializer, &c.Optimizer
	if _, known := initializers[i.Name]; !known {
		return wrong("initializer %q is none of %s", i.Name, names(initializers))
	}
	kind, known := optimizers[o.Name]
	if !known {
		return wrong("optimizer %q is none of %s", o.Name, names(optimizers))
	}
	if !finite(i.A) || !finite(i.B) || i.Name == "uniform" && i.B < i.A || i.Name == "normal" && i.B < 0 {
		return wrong("initializer %s(%v, %v): the numbers must be finite, low at most high, std at least 0", i.Name, i.A, i.B)
	}
	if most := Largest(dtype); c.Refuse && i.most() > float64(most) {
		return wrong("initializer %s(%v, %v) makes numbers up to %v; the largest of %v is %v. non_finite=\"allow\" lets such rows be infinite", i.Name, i.A, i.B, i.most(), dtype, most)
	}
	for name, value := range map[string]float64{"learning_rate": o.LearningRate, "weight_decay": o.WeightDecay, "momentum": o.Momentum,
		"epsilon": o.Epsilon, "initial_accumulator": o.InitialAccumulator} {
		if !finite(value) || value < 0 {
			return wrong("%s=%v is not a finite number of at least 0", name, value)
		}
	}
	for name, value := range map[string]*float64{"clip_value": o.ClipValue, "clip_norm": o.ClipNorm} {
		if value != nil && !(*value > 0) {
			return wrong("%s=%v is not above 0", name, *value)
		}
	}
	for name, value := range map[string]float64{"beta1": o.Beta1, "beta2": o.Beta2} {
		if kind.code == C.PT_ADAM && !(value >= 0 && value < 1) {
			return wrong("%s=%v is not from 0 to below 1", name, value)
		}
	}
	if by := o.BiasCorrection; by != "" && by != ByTable && by != ByRow {
		return wrong("bias_correction=%q is none of %q, %q", by, ByTable, ByRow)
	} else if by != "" && kind.code != C.PT_ADAM {
		return wrong("optimizer %q has no bias_correction: it is %q", o.Name, by)
	}
	return dtype, nil
}

// most is how far from 0 a number of a new row may be. A normal one is within 6.8 standard
// deviations, because it is made of 32 random bits.
func (i *Initializer) most() float64 {
	switch i.Name {
	case "uniform":
		return max(math.Abs(i.A), math.Abs(i.B))
	case "normal":
		return math.Abs(i.A) + 6.8*i.B
	}
	return 0
}

// Largest is the largest number of a dtype of rows.
func Largest(d op.DType) float32 { return float32(largest[d]) }

// Beyond returns the place of the first number that rows of 16 bits would hold as an infinity, or -1.
func (c *Config) Beyond(rows []float32) int64 {
	var most float64
	switch c.DType {
	case op.Float16.String():
		most = float64(Largest(op.Float16))
	case op.BFloat16.String():
		most = float64(Largest(op.BFloat16))
	default:
		return -1
	}
	for at, x := range rows {
		if x := float64(x); x > most || x < -most {
			return int64(at)
		}
	}
	return -1
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// step returns the numbers of an update with a learning rate, of which t is the step, from 1.
func (o *Optimizer) step(rate float64, t int64) C.pt_step {
	limit := func(p *float64) C.float {
		if p == nil {
			return C.float(math.Inf(1))
		}
		return C.float(*p)
	}
	s := C.pt_step{
		rate: C.float(rate), weight_decay: C.float(o.WeightDecay), shrink: 1, clip_value: limit(o.ClipValue), clip_norm: limit(o.ClipNorm),
		momentum: C.float(o.Momentum), epsilon: C.float(o.Epsilon), root: 1,
		most: C.float(math.Inf(1)),
	}
	if o.Nesterov {
		s.nesterov = 1
	}
	kind := optimizers[o.Name]
	if kind.code == C.PT_ADAM {
		s.beta2, s.left1, s.left2 = C.float(o.Beta2), C.float(1-o.Beta1), C.float(1-o.Beta2)
		s.rate = C.float(rate / (1 - math.Pow(o.Beta1, float64(t))))
		s.root = C.float(math.Sqrt(1 - math.Pow(o.Beta2, float64(t))))
		s.whole_rate, s.beta = C.double(rate), [2]C.double{C.double(o.Beta1), C.double(o.Beta2)}
		if kind.decoupled {
			s.weight_decay, s.shrink = 0, C.float(1-rate*o.WeightDecay)
		}
	}
	return s
}
