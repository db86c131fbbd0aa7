package proxy

// spareDescriptors are kept for what is neither a client nor its backend
// connection: the listener, the poller, the standard streams, and some to look
// around with.
const spareDescriptors = 32

// aheadDescriptors are kept for each backend's connections dialed ahead.
const aheadDescriptors = 16

// unlimited is what MaxClients is where there is no limit to know.
const unlimited = 1 << 20

// maxClients returns how many sessions there may be at once: each needs two
// descriptors, its client's and its backend's, so that a client is accepted only
// when both are to be had.
func (srv *Server) maxClients() int {
	allowed := unlimited
	limit, known := descriptorLimit()
	if known {
		spare := spareDescriptors
		for _, b := range srv.cfg.Backends {
			spare += min(b.Max, max(aheadDescriptors, srv.cfg.MinIdle))
		}
		allowed = int(min(uint64(unlimited), max(1, (limit-min(limit, uint64(spare)))/2)))
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
func (srv *Server) MaxClients() int { return cap(srv.clients) }
