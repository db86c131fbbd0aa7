package config

import "math"

// maxClients and maxSize bound what one process can drive and hold. A request
// of less than minSize has no room for its client's number and its own.
const (
	maxClients = 1_000_000
	minSize    = 16
	maxSize    = 1 << 30
)

// Headings of the other commands' flags.
const (
	demoFlags    = "demo"
	echoFlags    = "server"
	faultFlags   = "misbehaviour"
	loadFlags    = "load"
	stopFlags    = "end"
	printFlags   = "output"
	generalFlags = "other"
)

func demoSettings(d *Demo) settings {
	own := settings{
		{
			name: "listen", category: demoFlags, defText: "default: a free port of 127.0.0.1",
			kind:  parsed(&d.Listen, ParseListen, listenTakes),
			usage: "put the proxy on `ADDR`: host:port, :port, [v6]:port or unix:/path",
		},
		{
			name: "duration", category: demoFlags, def: "10s",
			kind:  duration(&d.Duration, ""),
			usage: "run the load for `DURATION`",
		},
		{
			name: "clients", category: demoFlags, def: "64",
			kind:  number(&d.Clients, 1, maxClients, ""),
			usage: "run `N` clients at once; there are 20 connections, the others wait their turn",
		},
		{
			name: "requests-per-client", category: demoFlags, def: "20",
			kind:  number(&d.RequestsPerClient, 1, maxCount, ""),
			usage: "connect anew after `N` requests",
		},
		{
			name: "keep", category: demoFlags, def: "off",
			kind:  toggle(&d.Keep),
			usage: "go on serving after the load, until interrupted",
		},
	}
	return append(own, logSettings(&d.LogLevel, &d.LogFormat, "warn")...)
}

func echoSettings(e *Echo) settings {
	return settings{
		{
			name: "listen", category: echoFlags, defText: "required, may be repeated",
			kind:  list(&e.Listen, ParseListen, listenTakes),
			usage: "answer on `ADDR`: host:port, :port, [v6]:port or unix:/path",
		},
		{
			name: "delay", category: echoFlags, def: "0",
			kind:  duration(&e.Delay, "none"),
			usage: "wait `DURATION` before each reply",
		},
		{
			name: "greet", category: echoFlags,
			kind:  text(&e.Greet),
			usage: "speak first: send `TEXT` to each client at once",
		},
		{
			name: "late", category: faultFlags, def: "0",
			kind:  duration(&e.Late, "none"),
			usage: "send the first half of a reply at once and the rest after `DURATION`",
		},
		{
			name: "close-after", category: faultFlags, def: "0", defText: "default: never",
			kind:  number(&e.CloseAfter, 1, math.MaxInt64, "never"),
			usage: "close a connection (FIN) once `N` bytes of it have been answered",
		},
		{
			name: "reset-after", category: faultFlags, def: "0", defText: "default: never",
			kind:  number(&e.ResetAfter, 1, math.MaxInt64, "never"),
			usage: "reset a connection (RST) once `N` bytes of it have been answered",
		},
		{
			name: "silent", category: faultFlags, def: "off",
			kind:  toggle(&e.Silent),
			usage: "read and never answer",
		},
	}
}

func loadSettings(l *Load) settings {
	return append(loadClientSettings(l), settings{
		{
			name: "duration", category: stopFlags, def: "10s",
			kind:  duration(&l.Duration, ""),
			usage: "stop after `DURATION`",
		},
		{
			name: "requests", category: stopFlags, def: "0", defText: "default: no such end",
			kind:  number(&l.Requests, 1, math.MaxInt64, "no such end"),
			usage: "stop after `N` requests in all, instead of after a duration",
		},
		{
			name: "timeout", category: stopFlags, def: "30s",
			kind:  duration(&l.Timeout, ""),
			usage: "wait at most `DURATION` for a connection, a greeting or a reply, then count it as lost",
		},
		{
			name: "json", category: printFlags, def: "off",
			kind:  toggle(&l.JSON),
			usage: "print one JSON object instead of a table",
		},
	}...)
}

func loadClientSettings(l *Load) settings {
	return settings{
		{
			name: "target", category: loadFlags, defText: "required",
			kind:  parsed(&l.Target, ParseAddress, addressTakes),
			usage: "connect to `ADDR`: host:port, [v6]:port or unix:/path",
		},
		{
			name: "clients", category: loadFlags, def: "64",
			kind:  number(&l.Clients, 1, maxClients, ""),
			usage: "run `N` clients at once, each with one connection",
		},
		{
			name: "size", category: loadFlags, def: "64",
			kind:  number(&l.Size, minSize, maxSize, ""),
			usage: "send requests of `N` bytes; each reply is compared byte for byte",
		},
		{
			name: "requests-per-client", category: loadFlags, def: "0",
			kind:  number(&l.RequestsPerClient, 1, math.MaxInt64, "one connection for all"),
			usage: "close the connection after `N` requests and dial again; 0 keeps it",
		},
		{
			name: "rate", category: loadFlags, def: "0",
			kind: rate(&l.Rate),
			usage: "plan `R` requests per second over all clients and count latency from the planned start, so " +
				"that a stall counts for all that it held up; 0: each client sends when it has its reply",
		},
		{
			name: "skip", category: loadFlags, def: "0",
			kind:  number(&l.Skip, 0, maxSize, ""),
			usage: "ignore the first `N` bytes of each connection, a server's greeting",
		},
	}
}
