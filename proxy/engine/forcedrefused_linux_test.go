package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// engineChildEnv names what a child that TestEngineChild is does to itself before it
// asks for an engine.
const engineChildEnv = "FOREBAY_TEST_ENGINE_CHILD"

// TestEngineChild is not a test by itself.
func TestEngineChild(t *testing.T) {
	refuseRings(t, os.Getenv(engineChildEnv))
	procs := runtime.GOMAXPROCS(0)
	for _, name := range []string{"uring", "auto"} {
		e, refused, err := New(name, Config{Workers: 2})
		took := "none"
		if err == nil {
			took = e.Name()
			e.Close()
		}
		fmt.Printf("%s: took %s, refused %v, error %v\n", name, took, refused, err)
	}
	fmt.Printf("GOMAXPROCS: %d\n", runtime.GOMAXPROCS(0)-procs)
}

// engineChild runs TestEngineChild in a process of its own, and returns what it said,
// line by line.
func engineChild(t *testing.T, name string) map[string]string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestEngineChild$", "-test.v")
	cmd.Env = append(os.Environ(), engineChildEnv+"="+name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	said := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			said[k] = v
		}
	}
	if said["auto"] == "" {
		saidNothing(t, out)
	}
	return said
}

func TestNewWhereTheKernelRefusesRings(t *testing.T) {
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	if os.Getuid() != 0 || readLine("/proc/sys/kernel/io_uring_disabled") == "1" {
		t.Skip("needs root, and io_uring for those who are not")
	}
	for name, why := range map[string]string{
		"seccomp": "io_uring_setup: operation not permitted (the seccomp filter of a container)",
		"memlock": "io_uring_setup: cannot allocate memory (RLIMIT_MEMLOCK, which is of all processes of the user together; or the memory limit of the cgroup)",
	} {
		t.Run(name, func(t *testing.T) {
			said := engineChild(t, name)
			if name == "memlock" && strings.Contains(said["auto"], "took uring") {
				t.Skip("this kernel does not count rings as locked memory")
			}
			why := "engine uring: " + kernelRelease() + ": " + why
			if want := "took epoll, refused [" + why + "], error <nil>"; said["auto"] != want {
				t.Errorf("auto: %s\nwant: %s", said["auto"], want)
			}
			if want := "took none, refused [" + why + "], error " + why; said["uring"] != want {
				t.Errorf("uring: %s\nwant: %s", said["uring"], want)
			}
			if said["GOMAXPROCS"] != "0" {
				t.Errorf("GOMAXPROCS has changed by %s", said["GOMAXPROCS"])
			}
		})
	}
}

// A probe is let pass, and then a loop gets no ring: what the loops before it had is
// given back.
func TestARefusedLoopLeavesNothing(t *testing.T) {
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	for refused := range 4 {
		t.Run(fmt.Sprintf("loop %d of 4", refused+1), func(t *testing.T) {
			before := remains(t)
			made := 0
			hookRing(t, func(c *ringCalls) {
				setup := c.setup
				c.setup = func(entries uint32, p *ringParams) (int, syscall.Errno) {
					if entries == uringSizes.ring.entries {
						if made++; made > refused {
							return -1, unix.ENOMEM
						}
					}
					return setup(entries, p)
				}
			})
			e, err := NewUring(Config{Workers: 4})
			if e != nil || !errors.Is(err, unix.ENOMEM) {
				t.Fatalf("NewUring = %v, %v; want ENOMEM", e, err)
			}
			before.expect(t)
		})
	}
}
