package config

import "fmt"

// complete fills in the backends' Max and checks what no single flag can. ss
// tells where the values came from.
func (s *Serve) complete(ss settings) error {
	if err := s.completeProtocol(ss); err != nil {
		return err
	}
	if err := s.Admin.complete(s.Listen, ss); err != nil {
		return err
	}
	if err := s.Health.complete(s.Protocol, ss); err != nil {
		return err
	}
	source := ss.source("backend")
	if len(s.Backends) == 0 {
		return fmt.Errorf("--backend is required: %s, may be repeated", backendTakes)
	}
	seen := map[string]Address{}
	for i := range s.Backends {
		b := &s.Backends[i]
		if first, ok := seen[b.Addr.key()]; ok {
			return fmt.Errorf("%s: got %q and %q; takes each backend once", source, first, b.Addr)
		}
		seen[b.Addr.key()] = b.Addr
		if b.Max == 0 {
			b.Max = s.MaxConns
		}
		if err := s.check(*b, ss); err != nil {
			return err
		}
	}
	return nil
}

// check compares one backend with the other settings.
func (s *Serve) check(b Backend, ss settings) error {
	if reaches(s.Listen, b.Addr) {
		return fmt.Errorf("%s: got %q, which is where %s %s takes clients; takes an address of another program",
			ss.source("backend"), b.Addr, ss.source("listen"), s.Listen)
	}
	if s.MinIdle > b.Max {
		return fmt.Errorf("%s: got %d, above max=%d of backend %s; takes at most the smallest max, or auto",
			ss.source("min-idle"), s.MinIdle, b.Max, b.Addr)
	}
	return nil
}

// forThrift refuses what only thrift has beside another protocol.
func forThrift(protocol string, ss settings, names ...string) error {
	if protocol == "thrift" {
		return nil
	}
	for _, name := range names {
		if s := ss.find(name); s.IsSet() {
			return fmt.Errorf("%s: got %q beside --protocol %s; takes --protocol thrift", s.source, s, protocol)
		}
	}
	return nil
}

// complete keeps the connections of thrift, unless told not to: it is there for
// clients that stay connected. Where a strategy is asked for, there are so few clients
// that it has a choice.
func (d *Demo) complete(ss settings) error {
	if ss.find("balance").IsSet() && !ss.find("clients").IsSet() {
		d.Clients = fewClients
	}
	if d.Protocol == "thrift" && !ss.find("requests-per-client").IsSet() {
		d.RequestsPerClient = 0
	}
	return nil
}

func (e *Echo) complete(ss settings) error {
	if len(e.Listen) == 0 {
		return fmt.Errorf("--listen is required: %s, may be repeated", listenTakes)
	}
	seen := map[string]bool{}
	for _, a := range e.Listen {
		if seen[a.key()] && !a.isAnyPort() {
			return fmt.Errorf("%s: got %q twice; takes each address once", ss.source("listen"), a)
		}
		seen[a.key()] = true
	}
	return forThrift(e.Protocol, ss, "wrong-id", "answer-oneway", "twice", "half", "early", "after")
}

// complete leaves one of the two ends: a number of requests, or the duration.
func (l *Load) complete(ss settings) error {
	if l.Target == (Address{}) {
		return fmt.Errorf("--target is required: %s", addressTakes)
	}
	if err := forThrift(l.Protocol, ss, "thrift-transport", "thrift-protocol", "method"); err != nil {
		return err
	}
	if l.Protocol == "thrift" && (l.Size < minThriftSize || l.Size > maxThriftSize) {
		return fmt.Errorf("--size: got %d beside --protocol thrift; takes a number from %d to %d", l.Size, minThriftSize, maxThriftSize)
	}
	if l.Requests == 0 {
		return nil
	}
	if d := ss.find("duration"); d.IsSet() {
		return fmt.Errorf("--requests: got %d beside --duration %s; takes the place of a duration", l.Requests, d)
	}
	l.Duration = 0
	return nil
}
