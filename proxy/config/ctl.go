package config

import (
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// Ctl is what `forebay ctl` takes.
type Ctl struct {
	// Admin is the listener that is asked.
	Admin Address

	// TokenFile has the secret for it. Empty: none is sent.
	TokenFile string

	// JSON prints JSON instead of tables.
	JSON bool

	// Command is one of those in the help. Backend (its name, or with add what
	// --backend takes) and Number are its arguments, zero where it has none; ID is the
	// session of disconnect.
	Command string
	Backend string
	Number  int
	ID      uint64
}

const ctlAbout = `forebay ctl asks a running forebay through its admin listener, or changes it.

usage:
  forebay ctl COMMAND [arguments] [flags]

commands:
`

const (
	ctlFlags = "listener"
	showing  = "output"
)

// defaultAdmin is where ctl and top look for the listener; serving has none by default.
const defaultAdmin = "127.0.0.1:9901"

// ctlCommand is one command of ctl, with the names of its arguments.
type ctlCommand struct {
	name, args, about string
}

var ctlCommands = []ctlCommand{
	{"pools", "", "show the backends and their counts"},
	{"queue", "", "show the queue"},
	{"sessions", "", "show clients, one by one"},
	{"add", "ADDR[,max=N][,weight=N][,backup=true]", "add a backend"},
	{"remove", "BACKEND", "remove one"},
	{"drain", "BACKEND", "no new work; what runs goes on"},
	{"maintain", "BACKEND", "take it out of service"},
	{"ready", "BACKEND", "take it back"},
	{"weight", "BACKEND N", "set its weight"},
	{"max", "BACKEND N", "set its max"},
	{"pause", "", "have clients wait in the queue"},
	{"resume", "", "serve them again"},
	{"disconnect", "SESSION", "end a session"},
}

// usage is the command with its arguments.
func (c ctlCommand) usage() string { return strings.TrimSpace("forebay ctl " + c.name + " " + c.args) }

func ctlIntro() string {
	var b strings.Builder
	b.WriteString(ctlAbout)
	for _, c := range ctlCommands {
		fmt.Fprintf(&b, "  %-42s %s\n", strings.TrimSpace(c.name+" "+c.args), c.about)
	}
	b.WriteString("\nA backend's name is its address, as pools shows it. What goes wrong is one\nline, and the exit status 1. A change that goes well prints nothing.\n")
	return b.String()
}

// clientSettings are those of the commands that ask a listener.
func clientSettings(addr *Address, tokenFile *string) settings {
	return settings{
		{
			name: "admin", category: ctlFlags, def: defaultAdmin, env: "FOREBAY_ADMIN",
			kind:  parsed(addr, ParseListen, listenTakes),
			usage: "ask the forebay whose --admin is `ADDR`",
		},
		{
			name: "token-file", category: ctlFlags, env: "FOREBAY_ADMIN_TOKEN_FILE",
			kind:  text(tokenFile),
			usage: "send the token in the file at `PATH`, which changes need unless the listener is a Unix socket",
		},
	}
}

// checkAdmin refuses what is no listener of somebody's.
func checkAdmin(addr Address, ss settings) error {
	if addr.isAnyPort() {
		return fmt.Errorf("%s: got %q; takes the port that the listener has", ss.source("admin"), addr)
	}
	return nil
}

func ctlSettings(c *Ctl) settings {
	return append(clientSettings(&c.Admin, &c.TokenFile), settings{
		{
			name: "json", category: showing, def: "off",
			kind:  toggle(&c.JSON),
			usage: "print JSON instead of a table",
		},
		{
			name: "limit", category: showing, def: "100",
			kind:  number(&c.Number, 1, maxSessions, ""),
			usage: "with sessions, show at most `N`",
		},
		{
			name: "backend", category: showing,
			kind:  text(&c.Backend),
			usage: "with sessions, show those of `BACKEND` alone",
		},
	}...)
}

// maxSessions is what the listener shows at most.
const maxSessions = 10000

// ctl builds the command, whose flags may stand between its arguments too: the library
// would take those for arguments.
func (r *runner) ctl(a Actions) *cli.Command {
	var ctl Ctl
	ss := append(ctlSettings(&ctl), helpSetting())
	help := helpText(ctlIntro(), ss)
	return &cli.Command{
		Name:               "ctl",
		HideHelp:           true,
		CustomHelpTemplate: help,
		SkipFlagParsing:    true,
		Action: func(c *cli.Context) error {
			args, err := ss.parse("forebay ctl", c.Args().Slice())
			if err != nil {
				return err
			}
			if ss.find("help").IsSet() {
				_, err := io.WriteString(r.Stdout, help)
				return err
			}
			if err := r.settle(ss, func(ss settings) error { return ctl.complete(args, ss) }); err != nil {
				return err
			}
			return a.Ctl(c.Context, ctl)
		},
	}
}

// parse notes the flags among args, and returns the others.
func (ss settings) parse(command string, args []string) (others []string, err error) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	for _, s := range ss {
		if err := s.Apply(set); err != nil {
			return nil, err
		}
	}
	for len(args) > 0 {
		if err := set.Parse(args); err != nil {
			return nil, onUsageError(command, ss)(nil, err, false)
		}
		if args = set.Args(); len(args) > 0 {
			others, args = append(others, args[0]), args[1:]
		}
	}
	return others, nil
}

// complete reads the command and its arguments.
func (c *Ctl) complete(args []string, ss settings) error {
	if err := checkAdmin(c.Admin, ss); err != nil {
		return err
	}
	if len(args) == 0 {
		return seeHelp("forebay ctl", "the command is missing")
	}
	command, err := findCtl(args[0])
	if err != nil {
		return err
	}
	c.Command = command.name
	if command.name != "sessions" {
		for _, name := range []string{"limit", "backend"} {
			if s := ss.find(name); s.IsSet() {
				return fmt.Errorf("%s: got %q beside %s; takes the command sessions", s.source, s, command.name)
			}
		}
		c.Number = 0
	}
	names := strings.Fields(command.args)
	if len(args)-1 != len(names) {
		return seeHelp("forebay ctl", "%s: got %d arguments; takes %s", command.name, len(args)-1, command.usage())
	}
	for i, name := range names {
		if err := c.argument(command, name).read(args[i+1]); err != nil {
			return fmt.Errorf("%s: %s: %w", command.name, name, err)
		}
	}
	return nil
}

// argument returns what reads an argument of a command.
func (c *Ctl) argument(command ctlCommand, name string) kind {
	switch {
	case name == "SESSION":
		return parsed(&c.ID, parseID, idTakes)
	case name == "N" && command.name == "max":
		return number(&c.Number, 1, maxMax, "")
	case name == "N":
		return number(&c.Number, 1, maxWeight, "")
	case command.name == "add":
		return parsed(&c.Backend, func(s string) (string, error) {
			_, err := ParseBackend(s)
			return s, err
		}, backendTakes)
	}
	return text(&c.Backend)
}

func findCtl(name string) (ctlCommand, error) {
	var names []string
	for _, c := range ctlCommands {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return ctlCommand{}, seeHelp("forebay ctl", "unknown command %q%s", name, didYouMean("", closest(name, names)))
}

const idTakes = "the id of a session, a number"

func parseID(s string) (uint64, error) {
	id, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, &valueError{given: s, takes: idTakes}
	}
	return id, nil
}
