package lifecycle

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/tune"
)

// write writes a file, and the folders in which it is.
func write(t *testing.T, text string, path ...string) string {
	file := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestWhichTableIsRead(t *testing.T) {
	here := tune.Fingerprint{MPI: "A", Shape: "2x1"}
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	t.Setenv(tunedVariable, "")
	assert.Empty(t, tableFile(here, []string{a, b}))
	inB := write(t, "", b, here.Name())
	assert.Equal(t, inB, tableFile(here, []string{a, b}))
	inA := write(t, "", a, here.Name())
	assert.Equal(t, inA, tableFile(here, []string{a, b}))
	t.Setenv(tunedVariable, "/absent")
	assert.Equal(t, "/absent", tableFile(here, []string{a, b}))
	t.Setenv(tunedVariable, "none")
	assert.Empty(t, tableFile(here, []string{a, b}))
}

func TestWhichFilesAreTables(t *testing.T) {
	here := tune.Fingerprint{MPI: "A", Shape: "2x1"}
	folder := t.TempDir()
	good := write(t, `{"format":1,"for":{"mpi":"A","shape":"2x1"},"rows":[]}`, folder, "good")
	text, err := readTable(good, here)
	assert.NoError(t, err)
	assert.NotEmpty(t, text)
	pipe := filepath.Join(folder, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for file, said := range map[string]string{
		filepath.Join(folder, "absent"): "absent: no such file",
		folder:                          "it is no file",
		pipe:                            "it is no file",
		write(t, "", folder, "empty"):   "empty: it is no table",
		write(t, `{"format":1,"for":{"mpi":"B","shape":"2x1"}}`, folder, "other"): `other: it was measured elsewhere: its MPI is "B", here it is "A"`,
		write(t, string(make([]byte, 2*tune.MostBytes)), folder, "long"):          "long: it has 262145 bytes, and",
	} {
		_, err := readTable(file, here)
		assert.ErrorContains(t, err, said)
	}
}

func TestShapes(t *testing.T) {
	for want, node := range map[string][]int{"1x1": {0}, "2x2": {0, 1, 0, 1}, "2x1-2, 3 ranks": {0, 0, 1}} {
		assert.Equal(t, want, shape(&topo.Topology{Size: len(node), Node: node}))
	}
}

func TestFabrics(t *testing.T) {
	for _, name := range transports {
		t.Setenv(name, "")
	}
	class := t.TempDir()
	assert.Equal(t, "tcp", fabric(class))
	for name, speed := range map[string]string{"lo": "", "down": "40000", "eth0": "1000\n", "eth1": "25000\n", "wlan0": "-1\n"} {
		write(t, speed, class, "net", name, "speed")
		write(t, map[bool]string{true: "down\n", false: "up\n"}[name == "down"], class, "net", name, "operstate")
	}
	assert.Equal(t, "tcp 25000 Mb/s", fabric(class))
	write(t, "100 Gb/sec (4X EDR)\n", class, "infiniband", "mlx5_0", "ports", "1", "rate")
	t.Setenv("UCX_TLS", "tcp")
	assert.Equal(t, "infiniband 100 Gb/sec (4X EDR), UCX_TLS=tcp", fabric(class))
}

func TestProcessors(t *testing.T) {
	cpuinfo := write(t, "processor\t: 0\nmodel name\t: A CPU\nmodel name\t: A CPU\n", t.TempDir(), "cpuinfo")
	assert.Equal(t, "A CPU", processor(cpuinfo))
	assert.NotEmpty(t, processor("/absent"))
}
