package engine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"forebay/proxy/proxytest"
)

// left is what an engine might leave behind in its process.
type left struct {
	descriptors, rings, ringMaps, workers, goroutines, procs int
	address                                                  int64 // bytes of address space
}

// remains takes stock.
func remains(t *testing.T) left {
	t.Helper()
	l := left{descriptors: descriptors(t), goroutines: runtime.NumGoroutine(), procs: runtime.GOMAXPROCS(0)}
	l.rings, l.ringMaps = ringTraces(t)
	tasks, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, path := range tasks {
		if comm := readLine(path); strings.HasPrefix(comm, "iou-") {
			l.workers++
		}
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(statm))[0], 10, 64)
	l.address = pages * int64(os.Getpagesize())
	return l
}

// expect waits until no more is there than before. Workers of the kernel's leave when
// it has canceled what was theirs.
func (before left) expect(t *testing.T) {
	t.Helper()
	var now left
	var ok bool
	for range 2000 {
		now = remains(t)
		if ok = now.descriptors <= before.descriptors && now.rings <= before.rings && now.ringMaps <= before.ringMaps &&
			now.workers <= before.workers && now.goroutines <= before.goroutines && now.procs == before.procs; ok {
			break
		}
		pause(1e6)
	}
	if !ok {
		t.Errorf("left are %+v, want %+v", now, before)
	}
	// An engine's buffers are 20 MiB of address space. The runtime takes 64 MiB at a
	// time, and a thread of C 8 MiB.
	if grown := now.address - before.address; grown > 256<<20 && !raceEnabled {
		t.Errorf("%d MiB of address space are left", grown>>20)
	}
}

func TestNothingIsLeft(t *testing.T) {
	tests := []struct {
		name string
		do   func(b *bench)
	}{
		{"by engines that did nothing", func(*bench) {}},
		{"after traffic", func(b *bench) {
			var talks []*talk
			for i, s := range b.crowd("tcp", 5, RelayConfig{IdleTimeout: patience, Replay: true}) {
				talks = append(talks, s.talk(i, 200<<10, random(100<<10)))
			}
			hearAll(b, talks)
		}},
		{"after sessions that were cut", leaveCut},
		{"after watches and dials", leaveWatched},
	}
	proxytest.Pair(t, "unix") // what the runtime's poller needs is there from now on
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, newEngine func(Config) Engine) {
				once := func(workers int) {
					e := newEngine(Config{Workers: workers})
					t.Run("", func(t *testing.T) { tt.do(&bench{t, e}) })
					e.Close()
				}
				once(2)
				before := remains(t)
				for i := range 50 {
					once(1 + i%2)
				}
				before.expect(t)
			})
		})
	}
}

// leaveCut cuts sessions whose buffers are full, or that are just begun.
func leaveCut(b *bench) {
	for i, s := range b.crowd("unix", 6, RelayConfig{IdleTimeout: patience}) {
		if i%2 == 0 {
			drain := async(func() error { _, err := s.backend.Write(make([]byte, 4<<20)); return err })
			expect(b, s.client, "\x00")
			s.cut(nil)
			s.close()
			proxytest.Receive(b, drain, "the write to fail")
			continue
		}
		s.cut(errors.New("enough"))
		s.close()
	}
}

// leaveWatched watches connections, and closes them.
func leaveWatched(b *bench) {
	ln := proxytest.Listen(b, "unix")
	for range 5 {
		c := b.dial(b.Context(), "unix", ln.Addr().String())
		peer, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		seenc, stop := watching(c, "bytes")
		io.WriteString(peer, "x")
		for proxytest.Receive(b, seenc, "the byte").kind() != "bytes" {
		}
		stop()
		peer.Close()
	}
}
