// Package ctl is `forebay ctl`: it asks the admin listener of a running forebay, or has
// it make a change, and prints the answer as a table or as JSON.
package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"forebay/proxy/admin"
)

// A Command is what is to be done. Which fields matter depends on Name.
type Command struct {
	Name    string // pools, queue, sessions, add, remove, drain, maintain, ready, weight, max, pause, resume, disconnect
	Backend string // its name; with add, as --backend has it; with sessions, it may be empty
	Number  int    // of weight and max; with sessions, the most to show
	ID      uint64 // of the session to disconnect
	JSON    bool   // print JSON instead of a table
}

// Run does what c says, and prints what it asks for to w. A change prints nothing.
func Run(ctx context.Context, client *admin.Client, c Command, w io.Writer) error {
	switch c.Name {
	case "pools":
		p, err := client.Pools(ctx)
		return c.print(w, p, err, func() error { return writePools(w, p) })
	case "queue":
		q, err := client.Queue(ctx)
		return c.print(w, q, err, func() error { return writeQueue(w, q) })
	case "sessions":
		s, err := client.Sessions(ctx, c.Number, c.Backend)
		return c.print(w, s, err, func() error { return writeSessions(w, s) })
	}
	return c.change(ctx, client)
}

func (c Command) change(ctx context.Context, client *admin.Client) error {
	switch c.Name {
	case "add":
		return client.Add(ctx, c.Backend)
	case "remove":
		return client.Remove(ctx, c.Backend)
	case "drain", "maintain", "ready":
		return client.SetState(ctx, c.Backend, c.Name)
	case "weight":
		return client.SetWeight(ctx, c.Backend, c.Number)
	case "max":
		return client.SetMax(ctx, c.Backend, c.Number)
	case "pause":
		return client.Pause(ctx)
	case "resume":
		return client.Resume(ctx)
	case "disconnect":
		return client.Disconnect(ctx, c.ID)
	}
	return fmt.Errorf("unknown command %q", c.Name)
}

// print prints what was answered, unless that was an error.
func (c Command) print(w io.Writer, answer any, err error, table func() error) error {
	if err != nil {
		return err
	}
	if !c.JSON {
		return table()
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(answer)
}
