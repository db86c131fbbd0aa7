package proxy

// spareDescriptors are kept for what is neither a client nor a connection to a
// backend: the listener, the poller, the standard streams, and some to look
// around with.
const spareDescriptors = 32

// unlimited is what MaxClients is where there is no limit to know.
const unlimited = 1 << 20

// maxClients returns how many sessions there may be at once beside pooled connections
// in the pools; see allowedClients.
func (srv *Server) maxClients(pooled int) int {
	allowed := allowedClients(pooled)
	if want := srv.cfg.MaxClients; want > 0 {
		return min(want, allowed)
	}
	return allowed
}

// allowedClients returns how many sessions the descriptors are enough for: each needs
// two, its client's and its backend's, so that a client is accepted only when both are
// to be had. Where all connections that the pools may hold leave more than half, each
// client needs but one of the rest. Otherwise it is two for each, and connections that
// no client has, idle or being dialed, have a quarter of all at most.
func allowedClients(pooled int) int {
	limit, known := descriptorLimit()
	if !known {
		return unlimited
	}
	two := (limit - min(limit, spareDescriptors+min(uint64(pooled), limit/4))) / 2
	one := limit - min(limit, spareDescriptors+uint64(pooled))
	return int(min(unlimited, max(1, one, two)))
}

// warnOfClients says where there may be fewer clients than were asked for.
func (srv *Server) warnOfClients() {
	if want, got := srv.cfg.MaxClients, srv.MaxClients(); want > got {
		limit, _ := descriptorLimit()
		srv.cfg.Log.Warn().Int("max_clients", want).Uint64("descriptor_limit", limit).Int("lowered_to", got).
			Msg("--max-clients is above what the descriptor limit allows")
	}
}

// MaxClients returns how many sessions the server takes at once.
func (srv *Server) MaxClients() int { return int(srv.places.most.Load()) }
