// Command dump writes the constants of one ABI of gocore/mpi in the form of the
// header that check_constants.c includes.
package main

import (
	"fmt"
	"os"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

func main() {
	if len(os.Args) == 2 {
		for _, abi := range mpi.ABIs() {
			if abi.Name == os.Args[1] {
				dump(abi)
				return
			}
		}
	}
	fmt.Fprintln(os.Stderr, "usage: dump openmpi|mpich|standard")
	os.Exit(2)
}

func dump(abi *mpi.ABI) {
	fmt.Printf("// The %s ABI, written by tests/abi/dump.\n", abi.Name)
	for _, c := range abi.Constants() {
		if c.Optional {
			fmt.Printf("#ifdef %s\n", c.Name)
		}
		switch c.Kind {
		case "symbol":
			fmt.Printf("SYMBOL(%s, \"%s\")\n", c.Name, c.Symbol)
		case "handle":
			fmt.Printf("HANDLE(%s, %#x)\n", c.Name, c.Value)
		case "int":
			fmt.Printf("INT(%s, %d)\n", c.Name, c.Value)
		case "pointer":
			fmt.Printf("POINTER(%s, %d)\n", c.Name, c.Value)
		case "size":
			fmt.Printf("SIZE(%s, %d)\n", c.Name, c.Value)
		case "status":
			fmt.Printf("MEMBER(%s, %d)\n", c.Name, c.Value)
		}
		if c.Optional {
			fmt.Printf("#else\nABSENT(%s)\n#endif\n", c.Name)
		}
	}
}
