"""Delayed messages: delay levels (ScheduleMessageService), arbitrary delays (TimerMessageStore), and recall."""
