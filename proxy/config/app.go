package config

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"
)

// program is the name in help and errors, whatever the binary is called.
const program = "forebay"

const serveAbout = `forebay keeps a bounded pool of TCP connections in front of each backend. A
client gets the backend that --balance chooses, by default the least loaded, or
waits its turn in one queue for all.

usage:
  forebay --backend ADDR[,max=N][,weight=N][,backup=true] ... [flags]   serve
  forebay COMMAND [flags]   see COMMAND --help

commands:
  demo      backends, proxy and load in one process, with a report at the end
  echo      a server to try the proxy with, well behaved or not
  load      a load generator that checks every reply
  ctl       shows and changes a forebay that serves, through its --admin
  top       shows one live in the terminal
  simulate  what each strategy makes of a load, in virtual time

A flag overrides its environment variable, which overrides the default.
`

const demoAbout = `forebay demo runs three echo servers, the proxy in front of them and a load
against it, prints a report, and fails where anything was lost.
`

const echoAbout = `forebay echo sends back what it receives, as bytes or as the replies to Thrift
calls. When it ends it prints what it served.
`

const loadAbout = `forebay load sends requests and checks every reply, byte for byte. It fails
where one is lost or not the client's own.
`

// A runner is one call of Run.
type runner struct {
	Process
	version string
	noHelp  error // help was asked for on what is no command
}

// app builds the command line. It shows no help and no error of the library's
// own.
func (r *runner) app(a Actions) *cli.App {
	var s Serve
	version := versionSetting()
	ss := append(serveSettings(&s), helpSetting(), version)
	return &cli.App{
		Name:                      program,
		HideHelp:                  true, // help and version are settings like the others
		HideVersion:               true,
		DisableSliceFlagSeparator: true, // a backend contains commas
		Writer:                    r.Stdout,
		ErrWriter:                 r.Stderr,
		CustomAppHelpTemplate:     helpText(serveAbout, ss),
		Flags:                     ss.flags(),
		Before:                    func(c *cli.Context) error { return beforeCommand(c, ss) },
		OnUsageError:              onUsageError(program, ss),
		CommandNotFound:           func(c *cli.Context, name string) { r.noHelp = unknownCommand(c.App, name) },
		ExitErrHandler:            func(*cli.Context, error) {}, // the default one exits
		Commands:                  []*cli.Command{r.demo(a), r.echo(a), r.load(a), r.ctl(a), r.top(a), r.simulate(a)},
		Action: func(c *cli.Context) error {
			if version.IsSet() {
				_, err := fmt.Fprintln(r.Stdout, program, r.version)
				return err
			}
			if err := r.settle(ss, s.complete); err != nil {
				return err
			}
			return a.Serve(c.Context, s)
		},
	}
}

func (r *runner) demo(a Actions) *cli.Command {
	var d Demo
	return r.command("demo", demoAbout, demoSettings(&d), d.complete,
		func(ctx context.Context) error { return a.Demo(ctx, d) })
}

func (r *runner) echo(a Actions) *cli.Command {
	var e Echo
	return r.command("echo", echoAbout, echoSettings(&e), e.complete,
		func(ctx context.Context) error { return a.Echo(ctx, e) })
}

func (r *runner) load(a Actions) *cli.Command {
	var l Load
	return r.command("load", loadAbout, loadSettings(&l), l.complete,
		func(ctx context.Context) error { return a.Load(ctx, l) })
}

func (r *runner) top(a Actions) *cli.Command {
	var t Top
	return r.command("top", topAbout, topSettings(&t), t.complete,
		func(ctx context.Context) error { return a.Top(ctx, t) })
}

func (r *runner) simulate(a Actions) *cli.Command {
	var s Simulate
	return r.command("simulate", simulateIntro(), simulateSettings(&s), s.complete,
		func(ctx context.Context) error { return a.Simulate(ctx, s) })
}

// command builds a command that takes flags only.
func (r *runner) command(name, about string, ss settings,
	complete func(settings) error, act func(context.Context) error,
) *cli.Command {
	full := program + " " + name
	ss = append(ss, helpSetting())
	return &cli.Command{
		Name:               name,
		HideHelp:           true,
		CustomHelpTemplate: helpText(about+"\nusage:\n  "+full+" [flags]\n", ss),
		Flags:              ss.flags(),
		OnUsageError:       onUsageError(full, ss),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return seeHelp(full, "unexpected argument %q; %s takes flags only", c.Args().First(), full)
			}
			if err := r.settle(ss, complete); err != nil {
				return err
			}
			return act(c.Context)
		},
	}
}

// settle reads the values and completes the command's struct from them. Every
// error is a usage error.
func (r *runner) settle(ss settings, complete func(settings) error) error {
	err := ss.resolve(r.Getenv)
	if err == nil {
		err = complete(ss)
	}
	if _, hinted := errors.AsType[*usageError](err); err == nil || hinted {
		return err
	}
	return &usageError{err: err}
}
