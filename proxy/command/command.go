// Package command is what each of forebay's commands does with its settings: it makes the
// parts of them, runs these, and ends them.
//
//	serve.go      forebay itself: parts → run → drain
//	build.go      what the settings mean for the packages behind
//	balance.go    what of the choice deserves a warning
//	operators.go  the admin listener; ctl and top, which ask one
//	loadtest.go   demo, echo, load
//	simulate.go   simulate: no proxy, but the strategies that it chooses by
package command

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"forebay/proxy/config"
)

// Actions returns what config.Run is to call.
func Actions() config.Actions {
	return config.Actions{
		Serve:    serve,
		Demo:     untilSignal(demo),
		Echo:     untilSignal(echo),
		Load:     untilSignal(load),
		Ctl:      untilSignal(control),
		Top:      untilSignal(watch),
		Simulate: untilSignal(runSimulate),
	}
}

// Version is what the build recorded: a tag, or the commit.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}

// errReported makes the exit status 1 where the output has told why already.
var errReported = errors.New("")

var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// untilSignal returns action with a context that the first signal ends; a second
// one ends the process.
func untilSignal[T any](action func(context.Context, T) error) func(context.Context, T) error {
	return func(ctx context.Context, cfg T) error {
		ctx, stop := signal.NotifyContext(ctx, stopSignals...)
		defer stop()
		context.AfterFunc(ctx, stop)
		return action(ctx, cfg)
	}
}
