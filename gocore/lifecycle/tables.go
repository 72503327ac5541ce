package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/tune"
	"github.com/paddlempi/paddlempi/gocore/world"
)

const (
	// tunedVariable names the file with the table of ways.
	tunedVariable = "PADDLEMPI_TUNED"
	// noTable is its value for: none is looked for.
	noTable = "none"
)

// shareTable finds the table of ways for this world, on rank 0 only, and gives it to all ranks. What is wrong with a file is no error
// of the world. It is collective over all.
func shareTable(env *world.Env, mpi, version string, folders []string) error {
	if !env.Tunes() {
		return nil
	}
	if err := env.MeasureLatency(); err != nil {
		return err
	}
	var text []byte
	if t := &env.Groups.Tuning; env.Topo.Rank == 0 {
		t.Here = tune.Fingerprint{MPI: mpi, Version: version, Fabric: fabric("/sys/class"), CPU: processor("/proc/cpuinfo"), Shape: shape(env.Topo)}
		t.File = tableFile(t.Here, folders)
		if t.File != "" {
			var err error
			if text, err = readTable(t.File, t.Here); err != nil {
				t.Problem = err.Error()
			}
		}
	}
	return env.ShareTable(text)
}

// tableFile returns the file that is named, or the first one for this world in the folders; "": there is none.
func tableFile(here tune.Fingerprint, folders []string) string {
	if named, _ := dl.Getenv(tunedVariable); named == noTable {
		return ""
	} else if named != "" {
		return named
	}
	for _, folder := range folders {
		file := filepath.Join(folder, here.Name())
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return file
		}
	}
	return ""
}

// readTable returns the text of a table that is for this world.
func readTable(file string, here tune.Fingerprint) ([]byte, error) {
	text, err := readRegular(file, tune.MostBytes)
	if err != nil {
		return nil, err
	}
	table, err := tune.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if differs := here.Differs(table.For); differs != "" {
		return nil, fmt.Errorf("%s: it was measured elsewhere: %s", file, differs)
	}
	return text, nil
}

// readRegular reads a file, and at most one byte more than most. It does not wait, as a pipe would.
func readRegular(file string, most int64) ([]byte, error) {
	state, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !state.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: it is no file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most+1))
}

// shape returns nodes x ranks a node: "2x4"; "2x1-3, 4 ranks" if nodes differ.
func shape(t *topo.Topology) string {
	nodes := t.ByNode(transport.EveryRank(t.Size))
	least, most := t.Size, 0
	for _, ranks := range nodes {
		least, most = min(least, len(ranks)), max(most, len(ranks))
	}
	if least == most {
		return fmt.Sprintf("%dx%d", len(nodes), most)
	}
	return fmt.Sprintf("%dx%d-%d, %d ranks", len(nodes), least, most, t.Size)
}

// processor returns the model of the CPU, or its architecture where Linux does not know the model.
func processor(cpuinfo string) string {
	text, _ := readRegular(cpuinfo, 64<<10)
	if found := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return runtime.GOARCH
}

// transports are the variables that say what an MPI takes of a fabric.
var transports = []string{"OMPI_MCA_pml", "OMPI_MCA_btl", "UCX_TLS", "FI_PROVIDER", "I_MPI_FABRICS"}

// fabric returns what is known of the network between nodes, in a folder as /sys/class: the rate of InfiniBand, or the speed of the
// fastest interface that is up; and the variables that choose what MPI takes.
func fabric(class string) string {
	found := "tcp"
	if rates, _ := filepath.Glob(filepath.Join(class, "infiniband", "*", "ports", "*", "rate")); len(rates) > 0 {
		text, _ := os.ReadFile(rates[0])
		found = "infiniband " + strings.TrimSpace(string(text))
	} else if speed := fastest(class); speed > 0 {
		found += fmt.Sprintf(" %d Mb/s", speed)
	}
	for _, name := range transports {
		if value, _ := dl.Getenv(name); value != "" {
			found += fmt.Sprintf(", %s=%s", name, value)
		}
	}
	return found
}

// fastest returns the greatest speed of the interfaces that are up, in Mb/s; 0 if none tells.
func fastest(class string) (most int) {
	files, _ := filepath.Glob(filepath.Join(class, "net", "*", "speed"))
	for _, file := range files {
		state, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "operstate"))
		text, err := os.ReadFile(file) // fails where an interface has none
		if err == nil && strings.TrimSpace(string(state)) == "up" {
			if speed, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				most = max(most, speed)
			}
		}
	}
	return most
}
