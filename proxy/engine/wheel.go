package engine

import (
	"math/bits"
	"time"
)

// wheel keeps the timers of a loop: a hierarchical timing wheel (Varghese and Lauck,
// 1987, scheme 7). To set and to clear a timer costs the same however many there are,
// and none of it is the runtime's. A timer goes off in the tick after its time, never
// before it.
type wheel struct {
	cur    int64 // the newest tick that is done
	ring   timer // of the slot that is being emptied
	levels [wheelLevels]struct {
		used  uint64 // the slots that may hold timers
		slots [wheelSlots]timer
	}
}

const (
	wheelTick   = time.Millisecond
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = 6 // two years
)

// timer is one timer of a wheel; the zero value is not set. In a wheel's slot it is the
// head of a ring.
type timer struct {
	next, prev *timer
	at         int64 // in ticks
	owner      alarm
}

// alarm is whose timer goes off.
type alarm interface{ timeUp() }

func (t *timer) set() bool { return t.next != nil }

// ticks returns the first tick that is not before d.
func ticks(d time.Duration) int64 { return int64((d + wheelTick - 1) / wheelTick) }

// schedule sets t, for owner, to go off at d after the wheel's beginning. A timer that
// is set is moved.
func (w *wheel) schedule(t *timer, d time.Duration, owner alarm) {
	t.cancel()
	t.owner, t.at = owner, max(ticks(d), w.cur+1)
	w.place(t)
}

// cancel clears t, if it is set.
func (t *timer) cancel() {
	if t.next == nil {
		return
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.next, t.prev = nil, nil
}

// place puts t into the slot of its time: the lowest level whose turn has it.
func (w *wheel) place(t *timer) {
	level, ahead := 0, t.at-w.cur
	for ahead >= wheelSlots && level < wheelLevels-1 {
		ahead >>= wheelBits
		level++
	}
	at := t.at >> (level * wheelBits)
	if last := w.cur>>(level*wheelBits) + wheelSlots; at > last {
		at = last // beyond the wheel: it is placed anew when its slot comes
	}
	i := at & (wheelSlots - 1)
	l := &w.levels[level]
	l.used |= 1 << i
	head := &l.slots[i]
	if head.next == nil {
		head.next, head.prev = head, head
	}
	t.next, t.prev = head, head.prev
	head.prev.next, head.prev = t, t
}

// due returns when there is something to do next, and false where no timer is set.
func (w *wheel) due() (time.Duration, bool) {
	next, ok := w.dueTick()
	return time.Duration(next) * wheelTick, ok
}

func (w *wheel) dueTick() (next int64, ok bool) {
	for level := range w.levels {
		used := w.levels[level].used
		if used == 0 {
			continue
		}
		at := w.cur >> (level * wheelBits)
		first := int(at+1) & (wheelSlots - 1)
		ahead := int64(bits.TrailingZeros64(bits.RotateLeft64(used, -first))) + 1
		if t := (at + ahead) << (level * wheelBits); !ok || t < next {
			next, ok = t, true
		}
	}
	return next, ok
}

// advance lets go off what is due at d after the beginning.
func (w *wheel) advance(d time.Duration) {
	for now := int64(d / wheelTick); w.cur < now; {
		next, ok := w.dueTick()
		if !ok || next > now {
			w.cur = now
			return
		}
		w.cur = next
		for level := wheelLevels - 1; level >= 0; level-- {
			if next&(1<<(level*wheelBits)-1) == 0 {
				w.empty(level, int(next>>(level*wheelBits))&(wheelSlots-1))
			}
		}
	}
}

// empty takes the timers out of a slot whose time has come: those that are due go off,
// the others go to a lower level.
func (w *wheel) empty(level, slot int) {
	l := &w.levels[level]
	l.used &^= 1 << slot
	ring := &w.ring // what is set anew may come back to this slot
	head := &l.slots[slot]
	if head.next == nil || head.next == head {
		return
	}
	ring.next, ring.prev = head.next, head.prev
	ring.next.prev, ring.prev.next = ring, ring
	head.next, head.prev = head, head
	for ring.next != ring {
		t := ring.next
		t.cancel()
		if t.at <= w.cur {
			t.owner.timeUp()
		} else {
			w.place(t)
		}
	}
}
