// Command opgen generates code and documentation from three sets of tables. From
// the tables of operations, dtypes and reduce ops in table.go, and that of the
// calls of tables and KVs in calls.go, it writes the Go enums, the registry of
// algorithms, the C header, the Python enums and docs/ops.md. From the table of
// package launcher it writes the module that Python reads without loading the core.
// Run it from the root of the module.
//
//	go run ./tools/opgen          writes the files
//	go run ./tools/opgen -check   writes nothing; fails if a file is not up to date
package main

import (
	"bytes"
	"embed"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/paddlempi/paddlempi/gocore/launcher"
)

//go:embed templates/*.tmpl
var templates embed.FS

// outputs maps each template to the file that is written from it.
var outputs = []struct{ template, path string }{
	{"op_gen.go.tmpl", "gocore/op/op_gen.go"},
	{"registry_gen.go.tmpl", "gocore/coll/registry_gen.go"},
	{"code_gen.go.tmpl", "gocore/ps/job/code_gen.go"},
	{"pmpi_ops.h.tmpl", "capi/pmpi_ops.h"},
	{"op_gen.h.tmpl", "gocore/op/op_gen.h"},
	{"_ops.py.tmpl", "python/paddlempi/_ops.py"},
	{"ops.md.tmpl", "docs/ops.md"},
	{"known_launchers.py.tmpl", "python/paddlempi_bootstrap/known_launchers.py"},
}

func main() {
	check := flag.Bool("check", false, "write nothing; exit 1 when a generated file is not up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "opgen:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	if _, err := os.Stat("go.mod"); err != nil {
		return fmt.Errorf("run it from the root of the module: %w", err)
	}
	files, err := generate()
	if err != nil {
		return err
	}
	var stale []string
	for _, out := range outputs {
		want := files[out.path]
		have, err := os.ReadFile(out.path)
		if err == nil && bytes.Equal(have, want) {
			continue
		}
		if check {
			stale = append(stale, out.path)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(out.path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(out.path, want, 0o644); err != nil {
			return err
		}
	}
	if len(stale) > 0 {
		return fmt.Errorf("not up to date with tools/opgen: %s; run go run ./tools/opgen and commit the result",
			strings.Join(stale, ", "))
	}
	return nil
}

// generate returns the contents of every output by its path.
func generate() (map[string][]byte, error) {
	if err := validate(); err != nil {
		return nil, err
	}
	if err := validateCalls(); err != nil {
		return nil, err
	}
	parsed, err := template.New("").Funcs(functions).ParseFS(templates, "templates/*.tmpl")
	if err != nil {
		return nil, err
	}
	data := map[string]any{
		"Operations":  operations,
		"Collectives": collectives(),
		"Arities":     arities,
		"Whos":        whos,
		"Sharings":    sharings,
		"DTypes":      dtypes,
		"Kinds":       kinds,
		"ReduceOps":   reduceOps,
		"Flags":       flags,
		"Launchers":   launcher.Kinds,
		"Tensors":     tensors,
		"Calls":       calls,
		"TableCalls":  callsOf(false),
		"KVCalls":     callsOf(true),
	}
	files := map[string][]byte{}
	for _, out := range outputs {
		var text bytes.Buffer
		if err := parsed.ExecuteTemplate(&text, out.template, data); err != nil {
			return nil, err
		}
		files[out.path] = text.Bytes()
		if strings.HasSuffix(out.path, ".go") {
			formatted, err := format.Source(text.Bytes())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", out.path, err)
			}
			files[out.path] = formatted
		}
	}
	return files, nil
}

var functions = template.FuncMap{
	"upper":    strings.ToUpper,
	"snake":    snake,
	"lower":    lowerFirst,
	"py":       pyBool,
	"tuple":    pyTuple,
	"heads":    pyHeads,
	"any":      func(f launcher.Family) bool { return f == launcher.Any },
	"yes":      yes,
	"defined":  definedFor,
	"named":    dtypesOf,
	"arity":    arityText,
	"who":      whoText,
	"sharing":  sharing,
	"kindlist": kindList,
	"comment":  comment,
	"bits":     bits,
	"list":     func(names []string) string { return strings.Join(names, ", ") },
}

// snake turns OneOrN into ONE_OR_N.
func snake(ident string) string {
	var b strings.Builder
	for i, r := range ident {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// lowerFirst lets a sentence follow a name.
func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func pyBool(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

// pyTuple writes a tuple in the format of ruff: two or more names have a line each.
func pyTuple(names []string) string {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = strconv.Quote(name)
	}
	return tupleOf(items)
}

func pyHeads(heads []launcher.Head) string {
	items := make([]string, len(heads))
	for i, h := range heads {
		items[i] = fmt.Sprintf("(%q, r\"%s\")", h.Variable, h.Pattern)
	}
	return tupleOf(items)
}

func tupleOf(items []string) string {
	switch len(items) {
	case 0:
		return "()"
	case 1:
		return "(" + items[0] + ",)"
	}
	return "(\n            " + strings.Join(items, ",\n            ") + ",\n        )"
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return ""
}

// definedFor returns the dtypes that r reduces, in the order of their codes.
func definedFor(r reduceOp) []dtype {
	var out []dtype
	for _, d := range dtypes {
		if _, ok := r.Meaning[d.Kind]; ok {
			out = append(out, d)
		}
	}
	return out
}

// dtypesOf lists the names of the dtypes of a kind.
func dtypesOf(k kind) string {
	var names []string
	for _, d := range dtypes {
		if d.Kind == k {
			names = append(names, d.Name)
		}
	}
	return strings.Join(names, ", ")
}

func arityText(ident string) string {
	for _, a := range arities {
		if a.Ident == ident {
			return a.Text
		}
	}
	return ""
}

func whoText(ident string) string {
	for _, w := range whos {
		if w.Ident == ident {
			return w.Text
		}
	}
	return ""
}

// sharing returns the name of a shares for a text: "no shares" for NoShares.
func sharing(ident string) string { return strings.ToLower(strings.ReplaceAll(snake(ident), "_", " ")) }

// kindList lists the kinds of dtypes that r reduces, each with what r means for it.
func kindList(r reduceOp) string {
	var parts []string
	for _, k := range kinds {
		if meaning, ok := r.Meaning[k]; ok {
			parts = append(parts, fmt.Sprintf("%s (%s)", k, meaning))
		}
	}
	return strings.Join(parts, ", ")
}

// comment breaks text into the lines of an indented C comment, without "/*" and "*/".
func comment(text string) string {
	const indent, width = "   * ", 80
	var b strings.Builder
	column := len(indent)
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
