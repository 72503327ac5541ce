package mpi

import "github.com/paddlempi/paddlempi/gocore/op"

// ABI has what a program gets from the header of one MPI: the values of handles (or the symbols
// whose addresses they are), integers, the layout of MPI_Status, and error classes. Each ABI has a
// file of constants. tests/abi compares them with the real headers.
type ABI struct {
	Name         string
	Handles      [numHandles]Handle
	Ints         [numInts]int32
	InPlace      int64 // MPI_IN_PLACE
	StatusIgnore int64 // MPI_STATUS_IGNORE
	Status       StatusLayout
	Request      int32             // bytes of an MPI_Request
	Classes      [numClasses]int32 // the number of each error class in this ABI; 0: it has none
	Extension    string            // prefix of the error classes for fault tolerance: "MPIX_" or "MPI_"
}

// Handle is a predefined handle: the address of Symbol, or Value if Symbol is "".
type Handle struct {
	Symbol string
	Value  uint32
}

// StatusLayout has the size of MPI_Status and the offsets of its members, in bytes.
type StatusLayout struct{ Size, Source, Tag, Error int32 }

// ABIs lists every known ABI.
func ABIs() []*ABI { return []*ABI{&abiOpenMPI, &abiMPICH, &abiStandard} }

// Indices of the predefined handles in use. handleNames has their names.
const (
	hCommNull = iota
	hCommWorld
	hCommSelf
	hErrorsReturn
	hInfoNull
	hByte
	hInt8
	hUInt8
	hInt16
	hUInt16
	hInt32
	hUInt32
	hInt64
	hUInt64
	hFloat
	hDouble
	hComplexFloat
	hComplexDouble
	hSum
	hProd
	hMin
	hMax
	hBAnd
	hBOr
	hBXor
	hLAnd
	hLOr
	hLXor
	numHandles
)

var handleNames = [numHandles]string{
	hCommNull: "MPI_COMM_NULL", hCommWorld: "MPI_COMM_WORLD", hCommSelf: "MPI_COMM_SELF",
	hErrorsReturn: "MPI_ERRORS_RETURN", hInfoNull: "MPI_INFO_NULL",
	hByte: "MPI_BYTE",
	hInt8: "MPI_INT8_T", hUInt8: "MPI_UINT8_T", hInt16: "MPI_INT16_T", hUInt16: "MPI_UINT16_T",
	hInt32: "MPI_INT32_T", hUInt32: "MPI_UINT32_T", hInt64: "MPI_INT64_T", hUInt64: "MPI_UINT64_T",
	hFloat: "MPI_FLOAT", hDouble: "MPI_DOUBLE",
	hComplexFloat: "MPI_C_FLOAT_COMPLEX", hComplexDouble: "MPI_C_DOUBLE_COMPLEX",
	hSum: "MPI_SUM", hProd: "MPI_PROD", hMin: "MPI_MIN", hMax: "MPI_MAX",
	hBAnd: "MPI_BAND", hBOr: "MPI_BOR", hBXor: "MPI_BXOR",
	hLAnd: "MPI_LAND", hLOr: "MPI_LOR", hLXor: "MPI_LXOR",
}

// Indices of the integers in use. intNames has their names.
const (
	iAnySource = iota
	iAnyTag
	iProcNull
	iThreadSingle
	iThreadFunneled
	iThreadSerialized
	iThreadMultiple
	iTypeShared
	iTagUB
	iKeyvalInvalid
	iModeCreate
	iModeExcl
	iModeRdonly
	iModeRdwr
	numInts
)

var intNames = [numInts]string{
	iAnySource: "MPI_ANY_SOURCE", iAnyTag: "MPI_ANY_TAG", iProcNull: "MPI_PROC_NULL",
	iThreadSingle: "MPI_THREAD_SINGLE", iThreadFunneled: "MPI_THREAD_FUNNELED",
	iThreadSerialized: "MPI_THREAD_SERIALIZED", iThreadMultiple: "MPI_THREAD_MULTIPLE",
	iTypeShared: "MPI_COMM_TYPE_SHARED", iTagUB: "MPI_TAG_UB", iKeyvalInvalid: "MPI_KEYVAL_INVALID",
	iModeCreate: "MPI_MODE_CREATE", iModeExcl: "MPI_MODE_EXCL", iModeRdonly: "MPI_MODE_RDONLY", iModeRdwr: "MPI_MODE_RDWR",
}

// Constant is one line of an ABI for the checker in tests/abi.
type Constant struct {
	Kind   string // "handle", "symbol", "int", "pointer", "size", "status"
	Name   string // as in mpi.h; for a size the type, for a status a member
	Symbol string // for kind "symbol"
	Value  int64
	// Optional says that headers of older versions of this MPI lack the constant. Headers that have
	// it define a macro.
	Optional bool
}

// Constants returns all constants of a.
func (a *ABI) Constants() []Constant {
	var all []Constant
	for i, h := range a.Handles {
		if h.Symbol != "" {
			all = append(all, Constant{Kind: "symbol", Name: handleNames[i], Symbol: h.Symbol})
		} else {
			all = append(all, Constant{Kind: "handle", Name: handleNames[i], Value: int64(h.Value)})
		}
	}
	for i, v := range a.Ints {
		all = append(all, Constant{Kind: "int", Name: intNames[i], Value: int64(v)})
	}
	all = append(all,
		Constant{Kind: "pointer", Name: "MPI_IN_PLACE", Value: a.InPlace},
		Constant{Kind: "pointer", Name: "MPI_STATUS_IGNORE", Value: a.StatusIgnore},
		Constant{Kind: "size", Name: "MPI_Request", Value: int64(a.Request)},
		Constant{Kind: "size", Name: "MPI_Status", Value: int64(a.Status.Size)},
		Constant{Kind: "status", Name: "MPI_SOURCE", Value: int64(a.Status.Source)},
		Constant{Kind: "status", Name: "MPI_TAG", Value: int64(a.Status.Tag)},
		Constant{Kind: "status", Name: "MPI_ERROR", Value: int64(a.Status.Error)})
	for c, v := range a.Classes {
		if v == 0 {
			continue
		}
		class := Class(c)
		name, optional := class.String(), class >= ErrProcAborted && a != &abiStandard
		if class >= ErrProcFailed {
			name = a.Extension + name[len("MPI_"):]
		}
		all = append(all, Constant{Kind: "int", Name: name, Value: int64(v), Optional: optional})
	}
	return all
}

// class returns the class of an error class number of this ABI.
func (a *ABI) class(native int32) Class {
	for c, v := range a.Classes {
		if v == native && v != 0 {
			return Class(c)
		}
	}
	return ErrUnknown
}

// typeHandle has the MPI type with which a dtype is reduced. A bool is a byte, and boolHandle has
// its ops. 16-bit floats and float8 have no type.
var typeHandle = map[op.DType]int{
	op.Bool: hUInt8, op.Int8: hInt8, op.UInt8: hUInt8, op.Int16: hInt16, op.UInt16: hUInt16,
	op.Int32: hInt32, op.UInt32: hUInt32, op.Int64: hInt64, op.UInt64: hUInt64,
	op.Float32: hFloat, op.Float64: hDouble, op.Complex64: hComplexFloat, op.Complex128: hComplexDouble,
}

// opHandle has the MPI op of each reduce op. AVG and PREMUL_SUM are sums, and the caller of MPI
// scales.
var opHandle = map[op.ReduceOp]int{
	op.Sum: hSum, op.Product: hProd, op.Min: hMin, op.Max: hMax, op.Avg: hSum,
	op.BAnd: hBAnd, op.BOr: hBOr, op.BXor: hBXor, op.PremulSum: hSum,
}

// boolHandle has the ops for bool. Any byte other than 0 is true, so they are logical ops.
var boolHandle = map[op.ReduceOp]int{
	op.Sum: hLOr, op.Product: hLAnd, op.Min: hLAnd, op.Max: hLOr,
	op.BAnd: hLAnd, op.BOr: hLOr, op.BXor: hLXor,
}
