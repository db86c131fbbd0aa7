package config

import "time"

// Top is what `forebay top` takes.
type Top struct {
	// Admin is the listener that is asked.
	Admin Address

	// TokenFile has the secret for it. Empty: none is sent.
	TokenFile string

	// Interval is the time between two looks; above 0.
	Interval time.Duration

	// Once prints one frame instead of showing one after the other.
	Once bool
}

const topAbout = `forebay top shows a running forebay in the terminal, through its admin
listener: clients, queue and backends, as they change.

keys:
  q             quit
  up, down      choose a backend
  s             sort: as listed, by load, by rate, by errors
  d, r, m       drain the backend, make it ready, maintain it
  p             pause the proxy, resume it

What changes something is asked about before, and needs --token-file, unless
the listener is a Unix socket. NO_COLOR in the environment is heeded.
`

func topSettings(t *Top) settings {
	return append(clientSettings(&t.Admin, &t.TokenFile), settings{
		{
			name: "interval", category: showing, def: "1s",
			kind:  duration(&t.Interval, ""),
			usage: "look every `DURATION`",
		},
		{
			name: "once", category: showing, def: "off",
			kind:  toggle(&t.Once),
			usage: "print one frame, after two looks, and end; needs no terminal",
		},
	}...)
}

func (t *Top) complete(ss settings) error { return checkAdmin(t.Admin, ss) }
