package proxy

// spareDescriptors are kept for what is neither a client nor a connection to a
// backend: the listener, the poller, the standard streams, and some to look
// around with.
const spareDescriptors = 32

// unlimited is what MaxClients is where there is no limit to know.
const unlimited = 1 << 20

// maxClients returns how many sessions there may be at once: each needs two
// descriptors, its client's and its backend's, so that a client is accepted only
// when both are to be had. Where all connections that the pools may hold leave more
// than half, each client needs but one of the rest. Otherwise it is two for each, and
// connections that no client has, idle or being dialed, have a quarter of all at most.
func (srv *Server) maxClients() int {
	allowed := unlimited
	limit, known := descriptorLimit()
	if known {
		pooled := 0
		for _, b := range srv.cfg.Backends {
			pooled += b.Max
		}
		two := (limit - min(limit, spareDescriptors+min(uint64(pooled), limit/4))) / 2
		one := limit - min(limit, spareDescriptors+uint64(pooled))
		allowed = int(min(unlimited, max(1, one, two)))
	}
	want := srv.cfg.MaxClients
	if want > allowed {
		srv.cfg.Log.Warn().Int("max_clients", want).Uint64("descriptor_limit", limit).Int("lowered_to", allowed).
			Msg("--max-clients is above what the descriptor limit allows")
	}
	if want == 0 || want > allowed {
		return allowed
	}
	return want
}

// MaxClients returns how many sessions the server takes at once.
func (srv *Server) MaxClients() int { return int(srv.places.most) }
