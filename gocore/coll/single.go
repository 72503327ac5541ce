package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// A group of one rank needs no MPI: every operation is a copy at most. Bytes moved: S.

var (
	barrierSingle       = Algorithm{Name: "single", Enabled: single, Build: func(*Args, *Program) error { return nil }}
	broadcastSingle     = Algorithm{Name: "single", Enabled: single, Build: func(*Args, *Program) error { return nil }}
	allReduceSingle     = Algorithm{Name: "single", Enabled: single, Build: reduceAlone}
	reduceSingle        = Algorithm{Name: "single", Enabled: single, Build: reduceAlone}
	reduceScatterSingle = Algorithm{Name: "single", Enabled: single, Build: reduceAlone}
	allGatherSingle     = Algorithm{Name: "single", Enabled: single, Build: copyAlone}
	gatherSingle        = Algorithm{Name: "single", Enabled: single, Build: copyAlone}
	scatterSingle       = Algorithm{Name: "single", Enabled: single, Build: copyAlone}
	allToAllSingle      = Algorithm{Name: "single", Enabled: single, Build: copyAlone}
	scanSingle          = Algorithm{Name: "single", Enabled: single, Build: scanAlone}
)

func copyAlone(a *Args, p *Program) error {
	p.Do(func() error {
		a.copyElements(a.Recv[0].Data, a.Send[0].Data, a.Recv[0].Count)
		return nil
	})
	return nil
}

// reduceAlone copies; only PREMUL_SUM changes anything.
func reduceAlone(a *Args, p *Program) error {
	p.Do(func() error {
		if len(a.Send) > 0 {
			a.copyElements(a.Recv[0].Data, a.Send[0].Data, a.Recv[0].Count)
		}
		if a.Reduce == op.PremulSum {
			return a.scale(a.Recv[0])
		}
		return nil
	})
	return nil
}

// scanAlone: the exclusive scan leaves rank 0's buffer as it is.
func scanAlone(a *Args, p *Program) error {
	if a.Code == op.Exscan {
		return nil
	}
	return reduceAlone(a, p)
}
