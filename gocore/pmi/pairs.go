package pmi

import (
	"encoding/binary"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// What a rank gives the others at a barrier: for each pair the lengths of key and value (2 bytes each,
// little endian), then both.

// maxPairs is how many bytes one rank may give at one barrier. MPICH gives some hundred.
const maxPairs = 1 << 20

// appendPair adds a pair. The lengths were checked: check has passed both.
func appendPair(to []byte, key, value string) []byte {
	to = binary.LittleEndian.AppendUint16(to, uint16(len(key)))
	to = binary.LittleEndian.AppendUint16(to, uint16(len(value)))
	return append(append(to, key...), value...)
}

// readPairs calls put for each pair that another rank has given.
func readPairs(from []byte, put func(key, value string)) error {
	if len(from) > maxPairs {
		return status.New(status.Launcher, "%d bytes for MPI at one barrier: at most %d are taken", len(from), maxPairs)
	}
	for len(from) > 0 {
		if len(from) < 4 {
			return status.New(status.Launcher, "what it gave for MPI ends within a pair")
		}
		k, v := int(binary.LittleEndian.Uint16(from)), int(binary.LittleEndian.Uint16(from[2:]))
		if from = from[4:]; k+v > len(from) {
			return status.New(status.Launcher, "what it gave for MPI ends within a pair")
		}
		key, value := string(from[:k]), string(from[k:k+v])
		if err := check(key, value); err != nil {
			return err
		}
		put(key, value)
		from = from[k+v:]
	}
	return nil
}
