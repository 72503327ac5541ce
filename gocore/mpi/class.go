package mpi

import "strconv"

// Class is an MPI error class with its number in the MPI-5 ABI, whatever MPI is in use. Callers see
// these numbers, and those of the implementations differ.
type Class int32

const (
	ErrBuffer               Class = 1  // MPI_ERR_BUFFER
	ErrCount                Class = 2  // MPI_ERR_COUNT
	ErrType                 Class = 3  // MPI_ERR_TYPE
	ErrTag                  Class = 4  // MPI_ERR_TAG
	ErrComm                 Class = 5  // MPI_ERR_COMM
	ErrRank                 Class = 6  // MPI_ERR_RANK
	ErrRequest              Class = 7  // MPI_ERR_REQUEST
	ErrRoot                 Class = 8  // MPI_ERR_ROOT
	ErrGroup                Class = 9  // MPI_ERR_GROUP
	ErrOp                   Class = 10 // MPI_ERR_OP
	ErrTopology             Class = 11 // MPI_ERR_TOPOLOGY
	ErrDims                 Class = 12 // MPI_ERR_DIMS
	ErrArg                  Class = 13 // MPI_ERR_ARG
	ErrUnknown              Class = 14 // MPI_ERR_UNKNOWN
	ErrTruncate             Class = 15 // MPI_ERR_TRUNCATE
	ErrOther                Class = 16 // MPI_ERR_OTHER
	ErrIntern               Class = 17 // MPI_ERR_INTERN
	ErrPending              Class = 18 // MPI_ERR_PENDING
	ErrInStatus             Class = 19 // MPI_ERR_IN_STATUS
	ErrAccess               Class = 20 // MPI_ERR_ACCESS
	ErrAmode                Class = 21 // MPI_ERR_AMODE
	ErrAssert               Class = 22 // MPI_ERR_ASSERT
	ErrBadFile              Class = 23 // MPI_ERR_BAD_FILE
	ErrBase                 Class = 24 // MPI_ERR_BASE
	ErrConversion           Class = 25 // MPI_ERR_CONVERSION
	ErrDisp                 Class = 26 // MPI_ERR_DISP
	ErrDupDatarep           Class = 27 // MPI_ERR_DUP_DATAREP
	ErrFileExists           Class = 28 // MPI_ERR_FILE_EXISTS
	ErrFileInUse            Class = 29 // MPI_ERR_FILE_IN_USE
	ErrFile                 Class = 30 // MPI_ERR_FILE
	ErrInfoKey              Class = 31 // MPI_ERR_INFO_KEY
	ErrInfoNokey            Class = 32 // MPI_ERR_INFO_NOKEY
	ErrInfoValue            Class = 33 // MPI_ERR_INFO_VALUE
	ErrInfo                 Class = 34 // MPI_ERR_INFO
	ErrIO                   Class = 35 // MPI_ERR_IO
	ErrKeyval               Class = 36 // MPI_ERR_KEYVAL
	ErrLocktype             Class = 37 // MPI_ERR_LOCKTYPE
	ErrName                 Class = 38 // MPI_ERR_NAME
	ErrNoMem                Class = 39 // MPI_ERR_NO_MEM
	ErrNotSame              Class = 40 // MPI_ERR_NOT_SAME
	ErrNoSpace              Class = 41 // MPI_ERR_NO_SPACE
	ErrNoSuchFile           Class = 42 // MPI_ERR_NO_SUCH_FILE
	ErrPort                 Class = 43 // MPI_ERR_PORT
	ErrQuota                Class = 44 // MPI_ERR_QUOTA
	ErrReadOnly             Class = 45 // MPI_ERR_READ_ONLY
	ErrRMAAttach            Class = 46 // MPI_ERR_RMA_ATTACH
	ErrRMAConflict          Class = 47 // MPI_ERR_RMA_CONFLICT
	ErrRMARange             Class = 48 // MPI_ERR_RMA_RANGE
	ErrRMAShared            Class = 49 // MPI_ERR_RMA_SHARED
	ErrRMASync              Class = 50 // MPI_ERR_RMA_SYNC
	ErrService              Class = 51 // MPI_ERR_SERVICE
	ErrSize                 Class = 52 // MPI_ERR_SIZE
	ErrSpawn                Class = 53 // MPI_ERR_SPAWN
	ErrUnsupportedDatarep   Class = 54 // MPI_ERR_UNSUPPORTED_DATAREP
	ErrUnsupportedOperation Class = 55 // MPI_ERR_UNSUPPORTED_OPERATION
	ErrWin                  Class = 56 // MPI_ERR_WIN
	ErrRMAFlavor            Class = 57 // MPI_ERR_RMA_FLAVOR
	ErrProcAborted          Class = 58 // MPI_ERR_PROC_ABORTED
	ErrValueTooLarge        Class = 59 // MPI_ERR_VALUE_TOO_LARGE
	ErrSession              Class = 60 // MPI_ERR_SESSION
	ErrErrhandler           Class = 61 // MPI_ERR_ERRHANDLER
	ErrABI                  Class = 62 // MPI_ERR_ABI

	// Classes for fault tolerance (ULFM). The standard does not number them.
	ErrProcFailed        Class = 63
	ErrProcFailedPending Class = 64
	ErrRevoked           Class = 65

	numClasses = 66
)

// String returns the name of the class in the standard.
func (c Class) String() string {
	if c > 0 && c < numClasses {
		return "MPI_" + classNames[c]
	}
	return "MPI error class " + strconv.Itoa(int(c))
}

var classNames = [numClasses]string{
	ErrBuffer:               "ERR_BUFFER",
	ErrCount:                "ERR_COUNT",
	ErrType:                 "ERR_TYPE",
	ErrTag:                  "ERR_TAG",
	ErrComm:                 "ERR_COMM",
	ErrRank:                 "ERR_RANK",
	ErrRequest:              "ERR_REQUEST",
	ErrRoot:                 "ERR_ROOT",
	ErrGroup:                "ERR_GROUP",
	ErrOp:                   "ERR_OP",
	ErrTopology:             "ERR_TOPOLOGY",
	ErrDims:                 "ERR_DIMS",
	ErrArg:                  "ERR_ARG",
	ErrUnknown:              "ERR_UNKNOWN",
	ErrTruncate:             "ERR_TRUNCATE",
	ErrOther:                "ERR_OTHER",
	ErrIntern:               "ERR_INTERN",
	ErrPending:              "ERR_PENDING",
	ErrInStatus:             "ERR_IN_STATUS",
	ErrAccess:               "ERR_ACCESS",
	ErrAmode:                "ERR_AMODE",
	ErrAssert:               "ERR_ASSERT",
	ErrBadFile:              "ERR_BAD_FILE",
	ErrBase:                 "ERR_BASE",
	ErrConversion:           "ERR_CONVERSION",
	ErrDisp:                 "ERR_DISP",
	ErrDupDatarep:           "ERR_DUP_DATAREP",
	ErrFileExists:           "ERR_FILE_EXISTS",
	ErrFileInUse:            "ERR_FILE_IN_USE",
	ErrFile:                 "ERR_FILE",
	ErrInfoKey:              "ERR_INFO_KEY",
	ErrInfoNokey:            "ERR_INFO_NOKEY",
	ErrInfoValue:            "ERR_INFO_VALUE",
	ErrInfo:                 "ERR_INFO",
	ErrIO:                   "ERR_IO",
	ErrKeyval:               "ERR_KEYVAL",
	ErrLocktype:             "ERR_LOCKTYPE",
	ErrName:                 "ERR_NAME",
	ErrNoMem:                "ERR_NO_MEM",
	ErrNotSame:              "ERR_NOT_SAME",
	ErrNoSpace:              "ERR_NO_SPACE",
	ErrNoSuchFile:           "ERR_NO_SUCH_FILE",
	ErrPort:                 "ERR_PORT",
	ErrQuota:                "ERR_QUOTA",
	ErrReadOnly:             "ERR_READ_ONLY",
	ErrRMAAttach:            "ERR_RMA_ATTACH",
	ErrRMAConflict:          "ERR_RMA_CONFLICT",
	ErrRMARange:             "ERR_RMA_RANGE",
	ErrRMAShared:            "ERR_RMA_SHARED",
	ErrRMASync:              "ERR_RMA_SYNC",
	ErrService:              "ERR_SERVICE",
	ErrSize:                 "ERR_SIZE",
	ErrSpawn:                "ERR_SPAWN",
	ErrUnsupportedDatarep:   "ERR_UNSUPPORTED_DATAREP",
	ErrUnsupportedOperation: "ERR_UNSUPPORTED_OPERATION",
	ErrWin:                  "ERR_WIN",
	ErrRMAFlavor:            "ERR_RMA_FLAVOR",
	ErrProcAborted:          "ERR_PROC_ABORTED",
	ErrValueTooLarge:        "ERR_VALUE_TOO_LARGE",
	ErrSession:              "ERR_SESSION",
	ErrErrhandler:           "ERR_ERRHANDLER",
	ErrABI:                  "ERR_ABI",
	ErrProcFailed:           "ERR_PROC_FAILED",
	ErrProcFailedPending:    "ERR_PROC_FAILED_PENDING",
	ErrRevoked:              "ERR_REVOKED",
}
