package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Exit statuses. An action may choose others.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// A Process is what Run needs of the operating system. The zero value is the
// real thing.
type Process struct {
	// Stdout gets help and the version, Stderr the errors. Nil: os.Stdout and
	// os.Stderr.
	Stdout, Stderr io.Writer

	// Getenv returns the value of an environment variable, "" for one that is
	// unset. Nil: os.Getenv.
	Getenv func(string) string
}

func (p Process) withDefaults() Process {
	if p.Stdout == nil {
		p.Stdout = os.Stdout
	}
	if p.Stderr == nil {
		p.Stderr = os.Stderr
	}
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	return p
}

// Run reads args, the program's name first, calls the action they ask for with
// ctx and returns the exit status: 0 where all is well, 2 where a flag, an
// argument or a variable is wrong, in which case no action runs, and 1, or what
// ExitCode says, where the action failed. It prints errors to stderr, and help
// and the version (--version prints "forebay " and version) to stdout.
func Run(ctx context.Context, args []string, p Process, version string, a Actions) int {
	p = p.withDefaults()
	r := &runner{Process: p, version: version}
	app := r.app(a)
	err := app.RunContext(ctx, args)
	return report(p.Stderr, cmp.Or(r.noHelp, err))
}

// report prints err, on a line of its own, and returns its exit status.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if text := oneLine(err.Error()); text != "" {
		fmt.Fprintln(w, "forebay: "+text)
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		if usage.hint != "" {
			fmt.Fprintln(w, usage.hint)
		}
		return exitUsage
	}
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return exitFailed
}

// oneLine keeps an error with line breaks, such as a joined one, on one line.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}
