package transport

// GatherBool tells all ranks of an exchange whether this one says yes, and returns what each says. It waits
// as Exchange.Gather does.
func GatherBool(x Exchange, yes bool, wait Wait) ([]bool, error) {
	mine := []int64{0}
	if yes {
		mine[0] = 1
	}
	rows, err := x.Gather(mine, wait)
	if err != nil {
		return nil, err
	}
	all := make([]bool, len(rows))
	for r, row := range rows {
		all[r] = row[0] != 0
	}
	return all, nil
}

// All tells whether all ranks of an exchange say yes. Each of them calls it.
func All(x Exchange, yes bool) (bool, error) {
	all := []int64{0}
	if yes {
		all[0] = 1
	}
	err := x.Min(all)
	return all[0] != 0, err
}
