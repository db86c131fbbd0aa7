package engine

// kernelEngines are the engines of this system, the cheapest first.
func kernelEngines() []kind {
	return []kind{
		{"uring", func(cfg Config) (Engine, error) { return orError(NewUring(cfg)) }},
		{"epoll", func(cfg Config) (Engine, error) { return orError(NewEpoll(cfg)) }},
	}
}

// orError keeps a nil *Loops from becoming an Engine that is not nil.
func orError(e *Loops, err error) (Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}
