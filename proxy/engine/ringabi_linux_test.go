package engine

import (
	"testing"
	"unsafe"
)

func TestRingLayout(t *testing.T) {
	var (
		s submission
		c completion
		p ringParams
		e bufEntry
		g bufRegistration
		w waitArgument
		o opProbe
	)
	tests := []struct {
		name      string
		got, want uintptr
	}{
		{"sqe", unsafe.Sizeof(s), 64},
		{"sqe.fd", unsafe.Offsetof(s.fd), 4},
		{"sqe.off", unsafe.Offsetof(s.off), 8},
		{"sqe.addr", unsafe.Offsetof(s.addr), 16},
		{"sqe.len", unsafe.Offsetof(s.len), 24},
		{"sqe.rw_flags", unsafe.Offsetof(s.opFlags), 28},
		{"sqe.user_data", unsafe.Offsetof(s.data), 32},
		{"sqe.buf_group", unsafe.Offsetof(s.group), 40},
		{"sqe.personality", unsafe.Offsetof(s.personal), 42},
		{"sqe.file_index", unsafe.Offsetof(s.file), 44},
		{"sqe.addr3", unsafe.Offsetof(s.addr3), 48},
		{"cqe", unsafe.Sizeof(c), 16},
		{"cqe.res", unsafe.Offsetof(c.res), 8},
		{"cqe.flags", unsafe.Offsetof(c.flags), 12},
		{"params", unsafe.Sizeof(p), 120},
		{"params.features", unsafe.Offsetof(p.features), 20},
		{"params.sq_off", unsafe.Offsetof(p.sq), 40},
		{"params.sq_off.array", unsafe.Offsetof(p.sq.array), 24},
		{"params.sq_off.user_addr", unsafe.Offsetof(p.sq.userAddr), 32},
		{"params.cq_off", unsafe.Offsetof(p.cq), 80},
		{"params.cq_off.cqes", unsafe.Offsetof(p.cq.cqes), 20},
		{"buf", unsafe.Sizeof(e), 16},
		{"buf.bid", unsafe.Offsetof(e.id), 12},
		{"buf_ring.tail", unsafe.Offsetof(e.tail), 14},
		{"buf_reg", unsafe.Sizeof(g), 40},
		{"buf_reg.bgid", unsafe.Offsetof(g.group), 12},
		{"getevents_arg", unsafe.Sizeof(w), 24},
		{"getevents_arg.ts", unsafe.Offsetof(w.timespecAt), 16},
		{"timespec", unsafe.Sizeof(timespec{}), 16},
		{"rsrc_update", unsafe.Sizeof(ringFD{}), 16},
		{"probe.ops", unsafe.Offsetof(o.ops), 16},
		{"probe_op", unsafe.Sizeof(o.ops[0]), 8},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}
