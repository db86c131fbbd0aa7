package engine

// backendEnded tells the machine that the backend's connection has ended with err.
func (d *drive) backendEnded(err error) {
	err = trueEnd(err, d.writeErr)
	d.backendOver = true
	d.machine.BackendEnded(err, d.undelivered(err))
}

// undelivered reports whether it is proved that the backend's program has read
// nothing of the last batch (Machine.BackendEnded), now that the connection has
// ended with end. It is the proof of a flight (flight.go), but on a connection that
// has been in use: what comes is acknowledged late there, so that a program could
// half-close, read the batch, and have its connection reset before the
// acknowledgement was due, which looks like one that closed before the batch came.
// Here it is taken as a fact that no program does that, one that half-closes and then
// resets, or closes without reading the rest, what it has read from: whoever closes
// an idle connection closes it whole. A flight cannot take that as a fact, since it
// knows nothing of what is spoken.
func (d *drive) undelivered(end error) bool {
	c, before := d.backend, d.mark
	if c.written == before {
		return true
	}
	return settle(func() verdict {
		if d.pending.Load() != 0 {
			return refuted // there is no time
		}
		return c.unreadSince(before, end)
	}) == proved
}
