package balance

// A Choice is a slot that Pick has reserved.
type Choice struct {
	Backend int // its index: see Add

	// Ready tells that an idle connection was reserved (its slot is Leased
	// now). Otherwise a free slot was, for a connection that is yet to be
	// dialed (its slot is Dialing now).
	Ready bool
}

// The tiers, from the first that may serve a client.
const (
	upTier = iota
	backupTier
	downTier // of use only where backends that are down are tried
	downBackupTier
	numTiers
	noTier = -1
)

// A tier is the backends that are alike to the choice, with and without room.
type tier struct {
	rule   rule // holds those with room
	size   int
	room   int   // how many the rule holds
	active int64 // the sum over all, as is weight
	weight int64
}

// tierOf returns where a backend belongs.
func (b *Balancer) tierOf(m *member) int {
	t := upTier
	switch {
	case m.Max == 0:
		return noTier // it is nobody's
	case m.Out == 0:
	case m.Out == Down && b.tryDown:
		t = downTier
	default:
		return noTier
	}
	if m.Backup {
		t++
	}
	return t
}

// settle brings the tiers up to date after any change of backend i.
func (b *Balancer) settle(i int) {
	m := &b.members[i]
	if at := b.tierOf(m); at != m.tier {
		b.leave(i)
		if at == noTier {
			return
		}
		m.tier = at
		b.tiers[at].size++
	} else if at == noTier {
		return
	}
	t := &b.tiers[m.tier]
	t.count(m, m.Active(), m.Weight)
	switch has := m.hasRoom(); {
	case has:
		t.rule.hold(i, m)
		if !m.held {
			m.held = true
			t.room++
		}
	case m.held:
		t.drop(i, m)
	}
}

// leave takes backend i out of its tier, until it is settled again.
func (b *Balancer) leave(i int) {
	m := &b.members[i]
	if m.tier == noTier {
		return
	}
	t := &b.tiers[m.tier]
	if m.held {
		t.drop(i, m)
	}
	t.count(m, 0, 0)
	t.size--
	m.tier = noTier
	if f, ok := t.rule.(forgetter); ok {
		f.forget(i)
	}
}

func (t *tier) drop(i int, m *member) {
	t.rule.drop(i, m)
	m.held = false
	t.room--
}

// count corrects the tier's sums by what m has become.
func (t *tier) count(m *member, active, weight int) {
	t.active += int64(active - m.active)
	t.weight += int64(weight - m.weight)
	m.active, m.weight = active, weight
}

// OnBackups reports whether clients get backups because no other backend is up. Where
// there is no other, they are what serves, and nothing has failed.
func (b *Balancer) OnBackups() bool {
	return b.kinds[0].members > 0 && b.tiers[upTier].size == 0 && b.tiers[backupTier].size > 0
}

// Pick reserves a slot of the backend that the strategy chooses for client c, of those
// that are up, have room and are not in tried. It returns ErrFull where waiting may help
// and ErrNone where it cannot. It never blocks.
func (b *Balancer) Pick(c Client, tried []int) (Choice, error) {
	for _, i := range tried {
		b.leave(i)
	}
	choice, err := b.pick(c)
	for _, i := range tried {
		b.settle(i)
	}
	return choice, err
}

func (b *Balancer) pick(c Client) (Choice, error) {
	for t := range b.tiers {
		switch tier := &b.tiers[t]; {
		case tier.size == 0:
		case tier.room == 0:
			return Choice{}, ErrFull
		default:
			return b.reserve(tier.rule.next(c)), nil
		}
	}
	return Choice{}, ErrNone
}

func (b *Balancer) reserve(i int) Choice {
	if b.members[i].Slots[Idle] > 0 {
		b.Move(i, Idle, Leased)
		return Choice{Backend: i, Ready: true}
	}
	b.Move(i, Free, Dialing)
	return Choice{Backend: i}
}
