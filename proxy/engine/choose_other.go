//go:build !linux

package engine

func kernelEngines() []kind { return nil }
