package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"forebay/proxy/engine"
	"forebay/proxy/proxytest"
)

// deniedEnv has this test binary become the program that it names, which the kernel
// lets make no io_uring, as a container's seccomp filter does.
const deniedEnv = "FOREBAY_TEST_DENIED"

func init() {
	path := os.Getenv(deniedEnv)
	if path == "" {
		return
	}
	err := denyRing()
	if err == nil {
		err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "not denied:", err)
	os.Exit(99)
}

// denyRing has io_uring_setup fail with EPERM on this thread, and what it executes.
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
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// denied has the program of cmd run where the kernel refuses rings.
func denied(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	cmd.Env = append(os.Environ(), deniedEnv+"="+cmd.Path)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path = self
	return cmd
}

// ringless skips a test where there is no ring to refuse.
func ringless(t *testing.T) {
	t.Helper()
	e, _, err := engine.New("uring", engine.Config{})
	if err != nil {
		t.Skip(err)
	}
	e.Close()
}

func TestUringThatIsRefusedEndsTheProgram(t *testing.T) {
	ringless(t)
	var errs strings.Builder
	cmd := denied(t, exec.Command(program, "--engine", "uring", "--listen", "127.0.0.1:0", "--backend", "127.0.0.1:1"))
	cmd.Stderr = &errs
	err := cmd.Run()
	if status := cmd.ProcessState.ExitCode(); status != 1 {
		t.Errorf("status = %d (%v), want 1", status, err)
	}
	said := errs.String()
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, "engine uring") || !strings.Contains(said, "operation not permitted") {
		t.Errorf("stderr = %q, want one line that names the engine and the cause", said)
	}
}

func TestAutoTakesEpollWhereUringIsRefused(t *testing.T) {
	ringless(t)
	args := []string{"--engine", "auto", "--log-level", "debug", "--listen", "127.0.0.1:0",
		"--backend", proxytest.Serve(t, "tcp", echo).String()}
	s := startCommand(t, "serving", denied(t, exec.Command(program, args...)))
	if lines := s.logged("serving"); lines[0]["engine"] != "epoll" {
		t.Errorf("the start-up line is %v, want engine epoll", lines[0])
	}
	why := s.logged("an engine does not run here")
	if len(why) != 1 || !strings.Contains(fmt.Sprint(why[0]["error"]), "engine uring: ") || why[0]["level"] != "debug" {
		t.Errorf("said %v; want one line at debug that tells why not uring", why)
	}
	c := s.dial(t)
	ask(t, c)
	c.Close()
	s.signal(t)
	if status := proxytest.Receive(t, s.exitc, "the program to end"); status != 0 {
		t.Errorf("status = %d, want 0", status)
	}
}
