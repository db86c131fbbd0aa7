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
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestProbeRing(t *testing.T) {
	err := probeRing()
	if err != nil {
		t.Skip(err)
	}
	fds, maps := ringTraces(t)
	all, _ := os.ReadDir("/proc/self/fd")
	start := time.Now()
	const n = 20
	for range n {
		if err := probeRing(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a probe takes %v", time.Since(start)/n)
	if f, m := ringTraces(t); f != fds || m != maps {
		t.Errorf("probes left %d descriptors and %d mappings of rings", f-fds, m-maps)
	}
	if now, _ := os.ReadDir("/proc/self/fd"); len(now) > len(all)+1 {
		t.Errorf("probes left %d descriptors", len(now)-len(all))
	}
}

// setupFails has io_uring_setup fail if it is called with one of flags.
func setupFails(errno syscall.Errno, flags uint32) func(c *ringCalls) {
	return func(c *ringCalls) {
		setup := c.setup
		c.setup = func(entries uint32, p *ringParams) (int, syscall.Errno) {
			if p.flags&flags != 0 {
				return -1, errno
			}
			return setup(entries, p)
		}
	}
}

// registerFails has io_uring_register fail for op.
func registerFails(errno syscall.Errno, op uint32) func(c *ringCalls) {
	return func(c *ringCalls) {
		register := c.register
		c.register = func(fd int, o uint32, arg unsafe.Pointer, n uint32) (int, syscall.Errno) {
			if o == op {
				return -1, errno
			}
			return register(fd, o, arg, n)
		}
	}
}

func TestProbeRingNamesWhatIsMissing(t *testing.T) {
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	tests := []struct {
		name string
		hook func(c *ringCalls)
		want string // empty: no error
	}{
		{"setup refused", setupFails(unix.EPERM, setupSingleIssuer), "io_uring_setup: operation not permitted ("},
		{"no io_uring", setupFails(unix.ENOSYS, setupSingleIssuer), "io_uring_setup: function not implemented (a kernel without CONFIG_IO_URING"},
		{"no memory", setupFails(unix.ENOMEM, setupSingleIssuer), "io_uring_setup: cannot allocate memory (RLIMIT_MEMLOCK, "},
		{"no descriptor", setupFails(unix.EMFILE, setupSingleIssuer), "(RLIMIT_NOFILE"},
		{"5.15", setupFails(unix.EINVAL, setupDeferTaskrun), ": IORING_SETUP_DEFER_TASKRUN needs Linux 6.1: io_uring_setup: invalid argument"},
		{"6.1", setupFails(unix.EINVAL, setupNoSQArray), ""},
		{"no ring descriptors", registerFails(unix.EBUSY, registerRingFDs), ""},
		{"no buffer rings", registerFails(unix.EINVAL, registerBufRing), "IORING_REGISTER_PBUF_RING (since Linux 5.19): io_uring_register: invalid argument"},
		{"register refused", registerFails(unix.EPERM, registerProbe), "io_uring_register: operation not permitted ("},
		{"no feature", func(c *ringCalls) {
			setup := c.setup
			c.setup = func(entries uint32, p *ringParams) (int, syscall.Errno) {
				fd, errno := setup(entries, p)
				p.features &^= featureExtArg
				return fd, errno
			}
		}, "IORING_FEAT_EXT_ARG needs Linux 5.11"},
		{"no operation", func(c *ringCalls) {
			register := c.register
			c.register = func(fd int, op uint32, arg unsafe.Pointer, n uint32) (int, syscall.Errno) {
				res, errno := register(fd, op, arg, n)
				if op == registerProbe {
					(*opProbe)(arg).ops[opShutdown].flags = 0
				}
				return res, errno
			}
		}, "IORING_OP_SHUTDOWN needs Linux 5.11"},
		{"enter refused", func(c *ringCalls) {
			c.enter = func(uint32, uint32, uint32, uint32, *waitArgument, bool) (int, syscall.Errno) { return -1, unix.EPERM }
		}, "multishot recv (since Linux 6.0), send and cancel: io_uring_enter: operation not permitted ("},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fds, maps := ringTraces(t)
			hookRing(t, tt.hook)
			checkRefusal(t, probeRing(), tt.want)
			if f, m := ringTraces(t); f != fds || m != maps {
				t.Errorf("the probe left %d descriptors and %d mappings", f-fds, m-maps)
			}
		})
	}
}

func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("probeRing = %v, want nil", err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("probeRing = %v, want …%s…", err, want)
	}
	t.Log(err)
}

func TestRefusalReason(t *testing.T) {
	tests := []struct {
		errno             syscall.Errno
		disabled, seccomp string
		want              string
	}{
		{unix.EPERM, "2", "2", "kernel.io_uring_disabled is 2"},
		{unix.EPERM, "1", "0", "kernel.io_uring_disabled is 1"},
		{unix.EPERM, "0", "2", "the seccomp filter of a container"},
		{unix.EPERM, "", "", "the seccomp filter of a container"},
		{unix.EPERM, "0", "0", "a security module"},
		{unix.EACCES, "0", "0", "a security module"},
		{unix.EINVAL, "0", "0", ""},
	}
	for _, tt := range tests {
		got := refusalReason(tt.errno, tt.disabled, tt.seccomp)
		if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%v, disabled %q, seccomp %q: %q, want %q…", tt.errno, tt.disabled, tt.seccomp, got, tt.want)
		}
	}
}

// ringChildEnv names what a child that TestRingChild is does to itself before it
// probes.
const ringChildEnv = "FOREBAY_TEST_RING_CHILD"

// ringChild runs TestRingChild in a process of its own, and returns what its probe
// said.
func ringChild(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRingChild$", "-test.v")
	cmd.Env = append(os.Environ(), ringChildEnv+"="+name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	_, said, ok := strings.Cut(string(out), "probe: ")
	if !ok {
		saidNothing(t, out)
	}
	said, _, _ = strings.Cut(said, "\n")
	return said
}

// saidNothing ends the test of a child that did not say what it is for: it may have
// skipped itself, since it could not be brought into the state that it is to be in.
func saidNothing(t *testing.T, out []byte) {
	t.Helper()
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("child: %s", out)
	}
	t.Fatalf("child: %s", out)
}

// TestRingChild is not a test by itself.
func TestRingChild(t *testing.T) {
	refuseRings(t, os.Getenv(ringChildEnv))
	fmt.Printf("probe: %v\n", probeRing())
}

// refuseRings brings a child into the state that how tells. Without one it is no child.
func refuseRings(t *testing.T, how string) {
	t.Helper()
	var err error
	switch how {
	case "":
		t.Skip("runs only as a child")
	case "seccomp":
		err = denyRing()
	case "memlock":
		err = errors.Join(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}), syscall.Setuid(65534))
	case "nobody":
		err = syscall.Setuid(65534)
	}
	if err != nil {
		t.Skip(err)
	}
}

// denyRing has io_uring_setup fail with EPERM in this process, as Docker has.
func denyRing() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// TSYNC: for every thread, as the one that probes is another.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}

func TestProbeRingUnderSeccomp(t *testing.T) {
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	want := "io_uring_setup: operation not permitted (the seccomp filter of a container)"
	if disabled := readLine("/proc/sys/kernel/io_uring_disabled"); disabled == "1" {
		want = "io_uring_setup: operation not permitted (kernel.io_uring_disabled is 1"
	}
	checkRefusal(t, errors.New(ringChild(t, "seccomp")), want)
}

// Root is not subject to the limit (CAP_IPC_LOCK), so the child is nobody.
func TestProbeRingUnderMemlock(t *testing.T) {
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	if os.Getuid() != 0 || readLine("/proc/sys/kernel/io_uring_disabled") == "1" {
		t.Skip("needs root, and io_uring for those who are not")
	}
	if said := ringChild(t, "nobody"); said != "<nil>" {
		t.Errorf("probe of user 65534: %s, want nil", said)
	}
	said := ringChild(t, "memlock")
	if said == "<nil>" {
		t.Skip("this kernel does not count rings as locked memory")
	}
	checkRefusal(t, errors.New(said), "io_uring_setup: cannot allocate memory (RLIMIT_MEMLOCK, ")
}
