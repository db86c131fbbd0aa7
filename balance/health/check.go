package health

import (
	"context"
	"errors"
	"net"
	"time"
)

// A Talk asks a backend for an answer over a connection of a check, and returns why
// there was none that will do. It must bound what it reads. Its time is bounded, by the
// deadline that the connection has, and it must not close the connection or keep it.
type Talk func(conn net.Conn) error

var errNoSlot = errors.New("health: no slot is free for a check")

// check makes one check, and reports whether it told something. Its slot is given back
// before the owner may hear of its outcome.
func (m *Monitor) check(ctx context.Context) (told bool) {
	m.slot.Store(false)
	release, ok := m.cfg.Reserve()
	if !ok {
		m.skipped(errNoSlot)
		return false
	}
	began := time.Now()
	err := m.cfg.ask(ctx)
	release()
	switch {
	case ctx.Err() != nil: // it was cut
		return false
	case m.cfg.IsLocal(err):
		m.skipped(err)
		return false
	default:
		m.checked(began, err)
		return true
	}
}

// ask connects, and talks to whoever is there.
func (cfg *Config) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := cfg.Dial(ctx, cfg.Network, cfg.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if cfg.Talk == nil {
		return nil
	}
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(past) })
	defer stop()
	return cfg.Talk(conn)
}
