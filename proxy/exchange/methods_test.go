package exchange

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func TestListedMethodsAreOnewayForGood(t *testing.T) {
	for _, learn := range []bool{false, true} {
		m := NewMethods([]string{"a"}, learn)
		m.answered("a")
		if !m.Oneway("a") || m.Oneway("b") {
			t.Errorf("learn %v: a %v, b %v", learn, m.Oneway("a"), m.Oneway("b"))
		}
	}
}

func TestNothingIsLearnedUnlessAskedFor(t *testing.T) {
	m := NewMethods(nil, false)
	for range 2 * proofs {
		m.passedOver("a")
	}
	m.answered("b")
	if m.Oneway("a") || m.open("a") || len(m.learned) != 0 {
		t.Errorf("oneway %v, open %v, %d remembered", m.Oneway("a"), m.open("a"), len(m.learned))
	}
}

func TestAnsweredMethodIsNeverLearned(t *testing.T) {
	m := NewMethods(nil, true)
	if !m.open("a") {
		t.Fatal("not open")
	}
	m.answered("a")
	for range 2 * proofs {
		m.passedOver("a")
	}
	if m.Oneway("a") || m.open("a") {
		t.Errorf("oneway %v, open %v", m.Oneway("a"), m.open("a"))
	}
}

func TestAnswerBeforeTheLastProofStartsNothingAnew(t *testing.T) {
	m := NewMethods(nil, true)
	for range proofs - 1 {
		m.passedOver("a")
	}
	m.answered("a")
	m.passedOver("a")
	if m.Oneway("a") {
		t.Error("learned")
	}
}

func TestMethodsAreToldOfOnce(t *testing.T) {
	m := NewMethods(nil, true)
	var told []string
	m.Learned = func(name string, oneway bool) { told = append(told, fmt.Sprint(name, oneway)) }
	for range 2 * proofs {
		m.passedOver("a")
	}
	for range 2 {
		m.answered("a")
		m.answered("b")
	}
	if fmt.Sprint(told) != "[atrue afalse]" {
		t.Errorf("told %q", told)
	}
}

func TestMethodsAreBounded(t *testing.T) {
	m := NewMethods(nil, true)
	for i := range maxMethods + 100 {
		if i%2 == 0 {
			m.answered(fmt.Sprint(i))
		} else {
			m.passedOver(fmt.Sprint(i))
		}
	}
	if len(m.learned) != maxMethods {
		t.Fatalf("%d are remembered", len(m.learned))
	}
	if m.open("another") {
		t.Error("a method of which nothing can be learned is open")
	}
	if !m.open("1") || m.open("0") {
		t.Error("what was learned before is lost")
	}
}

func TestNamelessMethodIsNotOpen(t *testing.T) {
	if NewMethods(nil, true).open("") {
		t.Error("open")
	}
}

func TestMethodsMayBeUsedByManyAtOnce(t *testing.T) {
	m := NewMethods([]string{"listed"}, true)
	var learned, unlearned atomic.Int64
	m.Learned = func(_ string, oneway bool) {
		if oneway {
			learned.Add(1)
		} else {
			unlearned.Add(1)
		}
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				name := fmt.Sprint("fire", i%50)
				m.open(name)
				m.passedOver(name)
				m.Oneway(name)
				m.Oneway("listed")
				m.answered(fmt.Sprint("echo", i%50))
				if g == 0 && i == 499 {
					m.outOfOrder()
				}
			}
		})
	}
	wg.Wait()
	if learned.Load() != 50 || unlearned.Load() != 0 {
		t.Errorf("learned %d, unlearned %d", learned.Load(), unlearned.Load())
	}
	for i := range 50 {
		m.answered(fmt.Sprint("fire", i))
	}
	if unlearned.Load() != 50 {
		t.Errorf("unlearned %d", unlearned.Load())
	}
}
