package config

import (
	"errors"
	"fmt"
)

const adminFlags = "admin"

// Admin is the listener for operators.
type Admin struct {
	// Listen is where it is. The zero Address: there is none.
	Listen Address

	// TokenFile has the secret that changes need. Empty: there is none.
	TokenFile string

	// Hosts are names by which the listener may be called, besides its address.
	Hosts []string

	// Pprof serves Go's profiles.
	Pprof bool
}

func adminSettings(s *Serve) settings {
	a := &s.Admin
	return settings{
		{
			name: "admin", category: adminFlags, defText: "default: off",
			kind: parsed(&a.Listen, ParseListen, listenTakes),
			usage: "answer operators on `ADDR`, over HTTP: /healthz, /readyz, /metrics, /api/ for forebay ctl, and at / a page for browsers. A Unix " +
				"socket is made with mode 0600, and takes changes without a token",
		},
		{
			name: "admin-token-file", category: adminFlags, defText: "default: no changes, but through a Unix socket",
			kind: text(&a.TokenFile),
			usage: "take changes from those who send the token in the file at `PATH`: 16 characters or more, not to be read " +
				"by everybody",
		},
		{
			name: "admin-host", category: adminFlags, defText: "may be repeated",
			kind: list(&a.Hosts, parseHost, hostTakes),
			usage: "take requests for `NAME` too; those for a name that is not the listener's are refused, which keeps other " +
				"people's web pages out",
		},
		{
			name: "admin-pprof", category: adminFlags, def: "off",
			kind:  toggle(&a.Pprof),
			usage: "serve Go's profiles under /debug/pprof/, to everybody who reaches the listener",
		},
		{
			name: "drain-delay", category: adminFlags, def: "0",
			kind: duration(&s.DrainDelay, "none"),
			usage: "after a signal go on taking clients for `DURATION` while /readyz fails already, so that whoever balances " +
				"over several proxies has time to see it",
		},
	}
}

const hostTakes = "a host name or an IP address, without a port"

// parseHost reads a name that a request may be for.
func parseHost(s string) (string, error) {
	if !validHost(s) {
		return "", &valueError{given: s, takes: hostTakes}
	}
	return s, nil
}

// complete checks what no single flag can.
func (a *Admin) complete(listen Address, ss settings) error {
	if a.Listen == (Address{}) {
		for _, name := range []string{"admin-token-file", "admin-host", "admin-pprof"} {
			if s := ss.find(name); s.wasGiven() {
				return fmt.Errorf("%s: there is no --admin for it; takes --admin beside it", s.source)
			}
		}
		return nil
	}
	if a.Listen.key() == listen.key() && !listen.isAnyPort() {
		return fmt.Errorf("%s: got %q, which is where %s takes clients; takes another address",
			ss.source("admin"), a.Listen, ss.source("listen"))
	}
	return nil
}

// ParseBackend reads what --backend takes, for a backend that is added later: Max is
// filled in, and the error is about this backend alone.
func (s *Serve) ParseBackend(text string) (Backend, error) {
	b, err := ParseBackend(text)
	if err != nil {
		return Backend{}, err
	}
	if b.Max == 0 {
		b.Max = s.MaxConns
	}
	if reaches(s.Listen, b.Addr) {
		return Backend{}, errors.New("it is where the proxy itself takes clients; takes an address of another program")
	}
	return b, nil
}
