// Package top is `forebay top`: what the admin listener tells, live in a terminal.
//
// It is a loop of three parts that know nothing of a terminal, so that tests need none:
// samples and what they say of the last seconds, the model, which messages change, and
// the frame, a text that is drawn from the model alone.
package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"forebay/proxy/admin"
)

// A Source is what is shown, and changed. *admin.Client is one.
type Source interface {
	Pools(ctx context.Context) (admin.Pools, error)
	SetState(ctx context.Context, name, state string) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Config describes a view.
type Config struct {
	Source  Source
	Address string // of the listener, for the title

	// Interval is the time between two looks. Zero: a second.
	Interval time.Duration

	// Changes offers the keys that change something. Without a token they would only
	// be refused.
	Changes bool
}

const defaultInterval = time.Second

// Run shows the view in the process's terminal until its user, or ctx, ends it.
func Run(ctx context.Context, cfg Config) error {
	opts := []tea.ProgramOption{tea.WithContext(ctx)}
	if os.Getenv("NO_COLOR") != "" {
		opts = append(opts, tea.WithColorProfile(colorprofile.ASCII))
	}
	_, err := tea.NewProgram(newModel(ctx, cfg), opts...).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// The frame of Once: wide enough for every column, and as high as it gets.
const (
	onceWidth  = 120
	onceHeight = 1000
)

// Once writes one frame to w, as plain text. Rates need two looks, so it takes one
// interval.
func Once(ctx context.Context, cfg Config, w io.Writer) error {
	m := newModel(ctx, cfg)
	m.width, m.height, m.plain = onceWidth, onceHeight, true
	for i := range 2 {
		if i > 0 {
			select {
			case <-time.After(m.interval):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		got := m.look()
		if got.err != nil {
			return got.err
		}
		m.take(got)
	}
	_, err := fmt.Fprintln(w, m.frame())
	return err
}
