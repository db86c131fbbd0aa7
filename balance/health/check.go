package health

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
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
	case isLocal(err):
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

// localFaults are what a dial fails with where this machine lacks something:
// descriptors, memory, ports. EAGAIN is what connecting to a Unix socket fails with
// while its backlog is full, which a burst of clients brings about.
var localFaults = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.EADDRNOTAVAIL, syscall.EAGAIN}

// isLocal reports whether a check failed because of this machine.
func isLocal(err error) bool {
	var dns *net.DNSError // keeps of its cause the text alone
	named := errors.As(err, &dns)
	for _, e := range localFaults {
		if errors.Is(err, e) || named && strings.HasSuffix(dns.Err, e.Error()) {
			return true
		}
	}
	return false
}
