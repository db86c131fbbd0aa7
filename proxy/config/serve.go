package config

import (
	"strings"
	"time"
)

// The headings of serving's flags, in the order of its help. A heading's flags
// stand together in the list.
const (
	listenerFlags = "listener"
	backendFlags  = "backends"
	poolFlags     = "pool"
	queueFlags    = "queue"
	sessionFlags  = "session"
	requestFlags  = "requests (--protocol thrift or length)"
	byteFlags     = "protocol and engine"
	loggingFlags  = "logging"
)

// maxCount bounds what only memory bounds, so that a slip is caught.
const maxCount = 10_000_000

// serveSettings returns the flags of serving, which fill in s.
func serveSettings(s *Serve) settings {
	all := settings{}
	all = append(all, listenerSettings(s)...)
	all = append(all, backendSettings(s)...)
	all = append(all, healthSettings(&s.Health)...)
	all = append(all, poolSettings(s)...)
	all = append(all, queueSettings(s)...)
	all = append(all, sessionSettings(s)...)
	all = append(all, byteSettings(s)...)
	all = append(all, requestSettings(s)...)
	all = append(all, adminSettings(s)...)
	all = append(all, logSettings(&s.LogLevel, &s.LogFormat, "info")...)
	for _, f := range all {
		f.env = "FOREBAY_" + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
	}
	return all
}

func listenerSettings(s *Serve) settings {
	return settings{
		{
			name: "listen", category: listenerFlags, def: "127.0.0.1:9000",
			kind: parsed(&s.Listen, ParseListen, listenTakes),
			usage: "take clients on `ADDR`: host:port, :port, [v6]:port or unix:/path. A socket file that " +
				"a dead process left is replaced, and the file is removed at exit",
		},
		{
			name: "max-clients", category: listenerFlags, def: "0", defText: "default: what the descriptor limit allows",
			kind: number(&s.MaxClients, 1, maxCount, "what the descriptor limit allows"),
			usage: "serve at most `N` clients at once; more stay in the accept backlog. Lowered, with a " +
				"warning, where the descriptor limit does not allow it",
		},
	}
}

func backendSettings(s *Serve) settings {
	return settings{
		{
			name: "backend", category: backendFlags, defText: "required, may be repeated",
			kind: list(&s.Backends, ParseBackend, backendTakes),
			usage: "send clients to the server at `ADDR[,max=N][,weight=N][,backup=true]`: host:port, [v6]:port or " +
				"unix:/path. max is its capacity, the connections open to it at once, and never exceeded; weight " +
				"(1) is its share, where --balance regards it; a backup is used only while no other backend is up. " +
				"In the environment several are separated by spaces",
		},
		balanceSetting(&s.Balance, backendFlags, "choose the backend of each client by `NAME`. least-conn: the lowest "+
			"connections/max, by weight on ties. round-robin: in turn. weighted-round-robin: in turn by weight. "+
			"random, weighted-random: drawn. random-two: the less loaded of two that are drawn by weight. source-hash: "+
			"by the client's address and weight. consistent-hash: likewise, on a ring, so that a backend that comes or goes "+
			"moves few clients. first: the first that has room. None takes a backend that is full or down"),
		{
			name: "max-conns", category: backendFlags, def: "64",
			kind:  number(&s.MaxConns, 1, maxMax, ""),
			usage: "hold at most `N` connections to a backend that names no max of its own",
		},
		{
			name: "dial-timeout", category: backendFlags, def: "2s",
			kind: duration(&s.DialTimeout, ""),
			usage: "give up on one dial after `DURATION`. The addresses of a name share it, and are " +
				"tried one after the other: two at once would be two connections in one slot",
		},
		{
			name: "dial-parallel", category: backendFlags, def: "4",
			kind: number(&s.DialParallel, 1, maxMax, ""),
			usage: "dial at most `N` connections ahead at once per backend, and as many for clients while " +
				"it recovers from a failure; a healthy backend dials up to its max",
		},
	}
}

// balanceSetting is shared with the demo.
func balanceSetting(dst *string, category, usage string) *setting {
	return &setting{
		name: "balance", category: category, def: strategies[0],
		kind:  choice(dst, strategies...),
		usage: usage,
	}
}

func poolSettings(s *Serve) settings {
	return settings{
		{
			name: "min-idle", category: poolFlags, def: "auto", defText: "default: auto, and 0 where requests are pooled",
			kind: minIdle(&s.MinIdle),
			usage: "keep `N|auto` unused connections to each backend dialed ahead, inside its max, so that a " +
				"client need not wait for a dial. auto: as many as the recent arrival rate and dial " +
				"time call for, none while there is no traffic. More than 1 can stall a server that " +
				"serves one connection at a time, and any can where a server has a thread for each " +
				"connection: it waits on a connection that no client uses yet",
		},
		{
			name: "virgin-timeout", category: poolFlags, def: "10s",
			kind: duration(&s.VirginTimeout, ""),
			usage: "close a connection that no client has used after `DURATION`; keep it below the time " +
				"after which the server drops silent clients",
		},
		{
			name: "idle-timeout", category: poolFlags, def: "60s",
			kind: duration(&s.IdleTimeout, ""),
			usage: "close a used connection that has lain idle for `DURATION`; keep it below the time after which " +
				"the server, or anything between, drops silent clients",
		},
		{
			name: "max-lifetime", category: poolFlags, def: "1h",
			kind:  duration(&s.MaxLifetime, "no limit"),
			usage: "pool no connection older than `DURATION`, give or take 10 %; 0 for no limit",
		},
		{
			name: "reuse", category: poolFlags, def: "never",
			kind: choice(&s.Reuse, "never", "quiet", "trust"),
			usage: "give a connection to a next client `WHEN`: never, or quiet, once it has been still for " +
				"--reuse-quiet after a clean end. Raw bytes cannot prove that no reply is still owed: quiet " +
				"is for stateless servers that answer each request once. It withholds the client's FIN from the backend. " +
				"trust is for --protocol length without --length-id: every request gets one reply",
		},
		{
			name: "reuse-quiet", category: poolFlags, def: "20ms",
			kind:  duration(&s.ReuseQuiet, ""),
			usage: "with --reuse quiet, the stillness of `DURATION` that makes a connection reusable",
		},
	}
}

func queueSettings(s *Serve) settings {
	return settings{
		{
			name: "acquire-timeout", category: queueFlags, def: "3s",
			kind:  duration(&s.AcquireTimeout, ""),
			usage: "close a client that got no backend connection within `DURATION`",
		},
		{
			name: "queue", category: queueFlags, def: "1024",
			kind: number(&s.Queue, 0, maxCount, "nobody waits"),
			usage: "let at most `N` clients wait at once, over all backends, first come first served; more " +
				"are refused at once. 0: nobody waits",
		},
		{
			name: "pause-timeout", category: queueFlags, def: "30s",
			kind: duration(&s.PauseTimeout, "not at all"),
			usage: "while the proxy is paused, let the time of clients that wait stand still for `DURATION` at the most, " +
				"in which a backend can be failed over",
		},
		{
			name: "first-byte-wait", category: queueFlags, def: "0",
			kind: duration(&s.FirstByteWait, "off"),
			usage: "hold a client without a backend connection until its first byte, at most `DURATION`: " +
				"port scans and silent clients then cost no backend anything. 0 for off, which servers that " +
				"speak first need",
		},
		{
			name: "abort-on-fin", category: queueFlags, def: "off",
			kind: toggle(&s.AbortOnFin),
			usage: "take a waiting client that half-closes as gone, for protocols whose clients never " +
				"half-close; otherwise it keeps its place once it has sent a byte",
		},
	}
}

func sessionSettings(s *Serve) settings {
	return settings{
		{
			name: "session-idle-timeout", category: sessionFlags, def: "10m",
			kind:  duration(&s.SessionIdleTimeout, "off"),
			usage: "end a session without a byte either way for `DURATION`; 0 for off",
		},
		{
			name: "half-close-timeout", category: sessionFlags, def: "30s",
			kind:  duration(&s.HalfCloseTimeout, ""),
			usage: "end a session without a byte for `DURATION` after one side's FIN",
		},
		{
			name: "tcp-user-timeout", category: sessionFlags, def: "30s",
			// The kernel counts in milliseconds, in 31 bits.
			kind:  socketDuration(&s.TCPUserTimeout, time.Millisecond, 576),
			usage: "drop a peer, on both sides, that acknowledges nothing for `DURATION`; 0 for off",
		},
		{
			name: "keepalive", category: sessionFlags, def: "30s",
			// The kernel counts in seconds, up to 32767.
			kind:  socketDuration(&s.KeepAlive, time.Second, 9),
			usage: "probe silent peers, on both sides, every `DURATION`; 0 for off",
		},
		{
			name: "drain-timeout", category: sessionFlags, def: "30s",
			kind: duration(&s.DrainTimeout, "cut at once"),
			usage: "after SIGTERM or SIGINT let sessions go on for `DURATION`, then cut them; 0 cuts at once, as " +
				"a second signal does",
		},
	}
}

func byteSettings(s *Serve) settings {
	return settings{
		{
			name: "protocol", category: byteFlags, def: "raw",
			kind: choice(&s.Protocol, "raw", "thrift", "length"),
			usage: "take the bytes as `PROTOCOL`: raw knows no messages, so a backend connection serves one " +
				"client (but see --reuse); thrift and length, where a length field tells a message's end, share " +
				"backend connections request by request",
		},
		{
			name: "engine", category: byteFlags, def: "auto",
			kind: choice(&s.Engine, "auto", "uring", "epoll", "net"),
			usage: "move bytes with `ENGINE`: uring (Linux 6.1, where io_uring is allowed), epoll (Linux) or net (everywhere); " +
				"auto takes the first of these that runs here",
		},
		{
			name: "workers", category: byteFlags, def: "1",
			kind: number(&s.Workers, 1, 256, ""),
			usage: "move bytes in `N` loops, with uring and epoll; more cost more for the same work, and only help where one " +
				"processor is not enough",
		},
	}
}

// logSettings are shared with the demo, which is quieter.
func logSettings(level, format *string, defaultLevel string) settings {
	return settings{
		{
			name: "log-level", category: loggingFlags, def: defaultLevel,
			kind: choice(level, "debug", "info", "warn", "error"),
			usage: "log from `LEVEL` up: debug (the ordinary end of a session too), info (faults and refusals), " +
				"warn or error",
		},
		{
			name: "log-format", category: loggingFlags, def: "auto",
			kind:  choice(format, "auto", "console", "json"),
			usage: "log as `FORMAT`: console, json, or auto, which is console on a terminal and json elsewhere",
		},
	}
}
