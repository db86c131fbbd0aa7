package config

import "math"

// fewClients is how many the demo has to show a strategy: at most two in five of its
// connections are busy.
const fewClients = 8

// maxClients and maxSize bound what one process can drive and hold. A request
// of less than minSize has no room for its client's number and its own.
const (
	maxClients = 1_000_000
	minSize    = 16
	maxSize    = 1 << 30
)

// minThriftSize and maxThriftSize bound the text of a call, which the numbers
// must fit into as text, and which must fit into a frame.
const (
	minThriftSize = 32
	maxThriftSize = 100 << 20 / 8
)

// Headings of the other commands' flags.
const (
	demoFlags   = "demo"
	echoFlags   = "server"
	faultFlags  = "misbehaviour"
	loadFlags   = "load"
	stopFlags   = "end"
	printFlags  = "output"
	thriftFlags = "thrift"

	thriftFaultFlags = "misbehaviour with --protocol thrift"

	generalFlags = "other"
)

// protocolSetting is what demo, echo and load have in common.
func protocolSetting(dst *string, category, usage string) *setting {
	return &setting{
		name: "protocol", category: category, def: "raw",
		kind:  choice(dst, "raw", "thrift"),
		usage: usage,
	}
}

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
			name: "clients", category: demoFlags, def: "64", defText: "default: 64, with --balance 8",
			kind:  number(&d.Clients, 1, maxClients, ""),
			usage: "run `N` clients at once; there are 20 connections, the others wait their turn",
		},
		balanceSetting(&d.Balance, demoFlags, "choose the backend of each client by `NAME`, and see in the report what each "+
			"one got: max is 4, 8 and 8, weight 1, 2 and 3. Fewer clients than connections show it best: where all "+
			"are busy whoever is free gets the next client, by any rule. Where the address of a client decides, each of "+
			"its connections comes from another loopback address"),
		{
			name: "requests-per-client", category: demoFlags, def: "20", defText: "default: 20, with thrift 0",
			kind:  number(&d.RequestsPerClient, 1, maxCount, "one connection for all"),
			usage: "connect anew after `N` requests; 0 keeps the connection",
		},
		protocolSetting(&d.Protocol, demoFlags, "make requests of `PROTOCOL`, raw or thrift: bytes, or calls, each of "+
			"which may go to another backend"),
		{
			name: "keep", category: demoFlags, def: "off",
			kind:  toggle(&d.Keep),
			usage: "go on serving after the load, until interrupted",
		},
	}
	return append(own, logSettings(&d.LogLevel, &d.LogFormat, "warn")...)
}

func echoSettings(e *Echo) settings {
	return append(echoServerSettings(e), echoThriftSettings(e)...)
}

func echoServerSettings(e *Echo) settings {
	return settings{
		{
			name: "listen", category: echoFlags, defText: "required, may be repeated",
			kind:  list(&e.Listen, ParseListen, listenTakes),
			usage: "answer on `ADDR`: host:port, :port, [v6]:port or unix:/path",
		},
		protocolSetting(&e.Protocol, echoFlags, "answer `PROTOCOL`, raw or thrift: the bytes, or the calls of an echo "+
			"service, framed, unframed or THeader, binary or compact, each reply as its call"),
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

func echoThriftSettings(e *Echo) settings {
	every := func(name string, dst *int64, usage string) *setting {
		return &setting{
			name: name, category: thriftFaultFlags, def: "0", defText: "default: none",
			kind:  number(dst, 1, math.MaxInt64, "none"),
			usage: usage,
		}
	}
	return settings{
		every("wrong-id", &e.WrongID, "give every `N`th reply another sequence id than its call"),
		{
			name: "answer-oneway", category: thriftFaultFlags, def: "off",
			kind:  toggle(&e.AnswerOneway),
			usage: "reply to calls typed oneway, as servers do whose method has a result",
		},
		every("twice", &e.Twice, "send every `N`th reply twice"),
		every("half", &e.Half, "cut every `N`th reply in half and close the connection"),
		every("early", &e.Early, "answer every `N`th call, of those with more than 1 KiB of frame after the head, "+
			"with an exception before that has been read"),
		every("after", &e.After, "send a few bytes of junk shortly after every `N`th reply"),
	}
}

func loadSettings(l *Load) settings {
	return append(append(loadClientSettings(l), loadThriftSettings(l)...), settings{
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

func loadThriftSettings(l *Load) settings {
	return settings{
		{
			name: "thrift-transport", category: thriftFlags, def: "framed",
			kind:  choice(&l.ThriftTransport, "framed", "unframed", "header"),
			usage: "put `TRANSPORT` around the calls: framed, unframed or header",
		},
		{
			name: "thrift-protocol", category: thriftFlags, def: "binary",
			kind:  choice(&l.ThriftProtocol, "binary", "compact"),
			usage: "encode the calls in `PROTOCOL`: binary or compact",
		},
		{
			name: "method", category: thriftFlags, def: "echo",
			kind: choice(&l.Method, "echo", "mix"),
			usage: "call `METHOD`: echo, or mix for all that the echo service has, at random: structs, exceptions, " +
				"oneways, a method that does not exist",
		},
	}
}

func loadClientSettings(l *Load) settings {
	return settings{
		{
			name: "target", category: loadFlags, defText: "required",
			kind:  parsed(&l.Target, ParseAddress, addressTakes),
			usage: "connect to `ADDR`: host:port, [v6]:port or unix:/path",
		},
		protocolSetting(&l.Protocol, loadFlags, "make requests of `PROTOCOL`, raw or thrift: bytes, or calls of the "+
			"service that forebay echo --protocol thrift has"),
		{
			name: "clients", category: loadFlags, def: "64",
			kind:  number(&l.Clients, 1, maxClients, ""),
			usage: "run `N` clients at once, each with one connection",
		},
		{
			name: "size", category: loadFlags, def: "64",
			kind:  number(&l.Size, minSize, maxSize, ""),
			usage: "send requests of `N` bytes, or with thrift a text of so many; each reply is compared byte for byte",
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
			name: "think", category: loadFlags, def: "0",
			kind:  duration(&l.Think, "no wait"),
			usage: "have each client wait `DURATION` between its requests",
		},
		{
			name: "skip", category: loadFlags, def: "0",
			kind:  number(&l.Skip, 0, maxSize, ""),
			usage: "ignore the first `N` bytes of each connection, a server's greeting",
		},
	}
}
