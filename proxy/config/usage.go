package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// A usageError is a wrong command line. Its hint, a second line, names the help
// to read; empty: the error says enough.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// seeHelp makes a usage error that points to the help of a command.
func seeHelp(command, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), hint: "see " + command + " --help"}
}

// beforeCommand checks what stands before a command, or in its place. The flags
// of serving before a command would otherwise be ignored without a word.
func beforeCommand(c *cli.Context, ss settings) error {
	if !c.Args().Present() {
		return nil
	}
	name := c.Args().First()
	if c.App.Command(name) == nil {
		// A flag without its value has taken the next flag for it, and that
		// one's value is what stands here: say the first thing that is wrong.
		if err := ss.resolve(func(string) string { return "" }); err != nil {
			return &usageError{err: err}
		}
		return unknownCommand(c.App, name)
	}
	if s := ss.given(); s != nil {
		return seeHelp(program+" "+name, "%s is a flag of serving; the flags of %s %s follow its name",
			s.label(), program, name)
	}
	return nil
}

func unknownCommand(app *cli.App, name string) error {
	var names []string
	for _, c := range app.Commands {
		names = append(names, c.Name)
	}
	return seeHelp(program, "unknown command %q%s", name, didYouMean("", closest(name, names)))
}

// onUsageError words the errors of the flag package, which has no types for
// them. Since a setting notes any value, only these two and bad syntax remain.
func onUsageError(command string, ss settings) cli.OnUsageErrorFunc {
	return func(_ *cli.Context, err error, _ bool) error {
		text := err.Error()
		if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
			return unknownFlag(command, name, ss)
		}
		if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
			return seeHelp(command, "--%s: got no value; takes %s", name, ss.find(name).takes)
		}
		return seeHelp(command, "%s", text)
	}
}

func unknownFlag(command, name string, ss settings) error {
	var names []string
	for _, s := range ss {
		names = append(names, s.name)
	}
	dashes := "--"
	if len(name) == 1 {
		dashes = "-"
	}
	return seeHelp(command, "unknown flag %s%s%s", dashes, printable(name), didYouMean("--", closest(name, names)))
}

func didYouMean(dashes, name string) string {
	if name == "" {
		return ""
	}
	return " (did you mean " + dashes + name + "?)"
}

// printable returns s as it is, unless quoting it would change it.
func printable(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}
