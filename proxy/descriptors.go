package proxy

// spareDescriptors are kept for what is neither a client nor a connection to a
// backend: the listener, the poller, the standard streams, and some to look
// around with.
const spareDescriptors = 32

// unlimited is what MaxClients is where there is no limit to know.
const unlimited = 1 << 20

// maxClients returns how many sessions there may be at once: each needs two
// descriptors, its client's and its backend's, so that a client is accepted only
// when both are to be had. Connections that no client has, idle or being dialed,
// have descriptors of their own: as many as the pools may hold, but at most a
// quarter of all.
func (srv *Server) maxClients() int {
	allowed := unlimited
	limit, known := descriptorLimit()
	if known {
		pooled := 0
		for _, b := range srv.cfg.Backends {
			pooled += b.Max
		}
		spare := min(limit, spareDescriptors+min(uint64(pooled), limit/4))
		allowed = int(min(unlimited, max(1, (limit-spare)/2)))
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
