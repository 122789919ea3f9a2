# C types for data_plane.py.
cimport cython

from semel.protocol.kafka.produce cimport ProduceRequest, ProduceResponse


@cython.locals(version=cython.int, request=ProduceRequest, response=ProduceResponse)
cpdef object _begin_produce(object handler, object context, object frame, object body)
cdef object _framed(object handler, object context, ProduceResponse response)
