// dearcalls: runs a command where a system call costs so many microseconds.
//
//     cc -O2 -o dearcalls dearcalls.c && ./dearcalls 1.7 peers.py ...
//
// What a proxy costs beside another depends on what a system call costs: from 0.1 µs on a
// processor that needs no mitigations to 2 µs on others, in some virtual machines, and under
// the seccomp filters of containers. Here a filter that lets all pass, and takes its time,
// makes each call dearer, for the command and all that it starts. It reads an argument of
// the call, since the kernel remembers what a filter says that does not (since 5.11).
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// The instructions of one filter (BPF_MAXINSNS is 4096), and of all of a process
// (MAX_INSNS_PER_PATH is 32768, of which each filter takes 4 more).
enum { largest = 4000, most = 32000 };

static void check(int failed, const char *what) {
  if (failed) {
    perror(what);
    exit(1);
  }
}

static void install(int instructions) {
  struct sock_filter *code = calloc(largest + 1, sizeof *code);
  for (; instructions > 0; instructions -= largest) {
    int n = instructions < largest ? instructions : largest;
    for (int i = 0; i < n; i++)
      code[i] = i % 2 ? (struct sock_filter)BPF_STMT(BPF_ALU | BPF_XOR | BPF_X, 0)
                      : (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
    code[n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n + 1, code};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program), "seccomp");
  }
}

// cost returns the microseconds of a system call: the least of several measurements, as
// others use the processor too.
static double cost(void) {
  enum { calls = 100000 };
  double least = 1e9;
  for (int round = 0; round < 20; round++) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; i++)
      syscall(SYS_getppid);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double got = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / 1e3 / calls;
    least = got < least ? got : least;
  }
  return least;
}

// costWith returns the same with a filter of so many instructions, in a process of its own.
static double costWith(int instructions) {
  int fds[2];
  check(pipe(fds), "pipe");
  pid_t child = fork();
  check(child < 0, "fork");
  double got = 0;
  if (child == 0) {
    install(instructions);
    got = cost();
    check(write(fds[1], &got, sizeof got) < 0, "write");
    _exit(0);
  }
  check(read(fds[0], &got, sizeof got) != sizeof got, "read");
  waitpid(child, NULL, 0);
  close(fds[0]);
  close(fds[1]);
  return got;
}

int main(int argc, char **argv) {
  double want = argc > 2 ? atof(argv[1]) : 0;
  if (want <= 0) {
    fprintf(stderr, "usage: dearcalls MICROSECONDS COMMAND [ARGUMENT...]\n");
    return 2;
  }
  // Not in proportion to the instructions: long filters do not fit into the cache.
  double base = cost();
  int instructions = want > base ? 1000 : 0;
  for (int round = 0; round < 6 && instructions > 0; round++) {
    double got = costWith(instructions) - base, next = instructions * (want - base) / (got > 0.001 ? got : 0.001);
    instructions = next < most ? next : most;
  }
  install(instructions);
  fprintf(stderr, "a system call costs %.2f us in place of %.2f\n", cost(), base);
  execvp(argv[2], argv + 2);
  check(1, argv[2]);
}
